"""An OpenID provider: asks it who somebody is (code flow with PKCE), and believes only what it signed for us.

State, nonce and PKCE verifier are made of the browser's cookie: an answer is of use only in the browser that asked, on
any replica, and nothing is kept for those who never come back.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from holdfast.core import base64url
from holdfast.core.own_ca.problem import AcmeError
from holdfast.core.people import GroupRule
from holdfast.core.public_address import PublicAddress
from holdfast.errors import TryLater, UserError
from holdfast.pki import jwt, strict_json
from holdfast.pki.jwk import AccountKey
from holdfast.pki.jwt import PublishedKey, TokenWrong
from holdfast.ports import Clock, Request, Response, Transport
from holdfast.secret import Secret

BACK: Final = "/login/provider/back"
OUT: Final = "/login/provider/logout"  # where the provider tells us that somebody logged out there
LOGGED_OUT: Final = "http://schemas.openid.net/event/backchannel-logout"
FRESH_FOR: Final = 3600.0  # seconds, of what the provider publishes about itself
KEYS_EVERY: Final = 60.0  # seconds between looks for a key that is not known
SKEW: Final = timedelta(seconds=60)
MOST: Final = 256 * 1024


class ProviderRefused(UserError):
    status, code = 401, "provider-refused"
    hint = "Try again. If it stays so, an admin finds the reason in the audit log."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    issuer: str
    client_id: str
    client_secret: Secret[str] | None
    name: str
    scopes: tuple[str, ...]
    name_claim: str
    groups_claim: str
    rules: tuple[GroupRule, ...]
    roots: bytes = b""  # PEM


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a provider publishes about itself (OpenID Connect Discovery §3)."""

    authorization: str
    token: str
    keys: str
    userinfo: str
    end_session: str
    names_itself: bool  # in answers (RFC 9207): then an answer without its name is not its own
    posts_secret: bool  # it takes the client's secret only in the body


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom the provider vouches for."""

    subject: str
    name: str
    groups: frozenset[str]
    sid: str | None


class Provider:
    def __init__(self, settings: ProviderSettings, transport: Transport, clock: Clock) -> None:
        self.settings = settings
        self._transport, self._clock = transport, clock
        self._metadata: tuple[float, Metadata] | None = None
        self._keys: tuple[float, list[PublishedKey]] | None = None

    # ── The way there and back ──

    async def address(self, ours: PublicAddress, browser: Secret[str], state: str) -> str:
        """Where the browser is sent to."""
        verifier = _verifier(browser, state).reveal()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": f"{ours.url}{BACK}",
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": _nonce(browser, state),
            "code_challenge": base64url.encode(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        return _with((await self.metadata()).authorization, asked)

    async def identity(self, ours: PublicAddress, browser: Secret[str], given: Mapping[str, str]) -> Identity:
        """Who comes back. The state was checked before. Raises ProviderRefused, or TryLater."""
        known = await self.metadata()
        self._check_sender(given.get("iss"), known)
        if "error" in given or not given.get("code"):
            raise ProviderRefused(f"{self.settings.name} did not log you in: {_plain(given.get('error', 'no code'))}.")
        state = given["state"]
        tokens = await self._exchange(known, ours, given["code"], _verifier(browser, state))
        claims = await self._claims(str(tokens.get("id_token", "")))
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), _nonce(browser, state).encode()):
            raise ProviderRefused("The answer belongs to another log-in (its nonce differs).")
        return await self._person(known, claims, tokens)

    def _check_sender(self, sender: str | None, known: Metadata) -> None:
        """Against an answer of another provider that is passed off as this one's (mix-up, RFC 9207 §2.4)."""
        if sender is None and not known.names_itself:
            return
        if sender != self.settings.issuer:
            raise ProviderRefused(f"The answer does not come from {self.settings.issuer} (its iss differs).")

    async def _exchange(
        self, known: Metadata, ours: PublicAddress, code: str, verifier: Secret[str]
    ) -> Mapping[str, Any]:
        chosen = self.settings
        body = {"grant_type": "authorization_code", "code": code, "redirect_uri": f"{ours.url}{BACK}",
                "code_verifier": verifier.reveal(), "client_id": chosen.client_id}  # fmt: skip
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if chosen.client_secret is not None and known.posts_secret:
            body["client_secret"] = chosen.client_secret.reveal()
        elif chosen.client_secret is not None:
            pair = f"{quote(chosen.client_id, safe='')}:{quote(chosen.client_secret.reveal(), safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = await self._ask("POST", known.token, headers=headers, body=urlencode(body).encode())
        if answer.status != 200:
            said = _plain(str(_object(answer).get("error", answer.status)))
            raise ProviderRefused(f"{chosen.name} did not accept the log-in: {said}.")
        return _object(answer)

    # ── What it signed ──

    async def _claims(self, token: str) -> Mapping[str, Any]:
        """The content of a token that the provider signed for us, and that holds now."""
        try:
            read = jwt.parse(token)
            claims = jwt.verify(read, await self._key(read))
            _check_claims(claims, self.settings, self._clock)
        except TokenWrong as why:
            raise ProviderRefused(f"The token of {self.settings.name} is refused: {why}.") from None
        return claims

    async def _key(self, token: jwt.UnverifiedToken) -> AccountKey:
        """A key that is not known may be a new one: then the provider is asked, but not again and again."""
        key = jwt.key_of(token, await self._published(FRESH_FOR)) or jwt.key_of(
            token, await self._published(KEYS_EVERY)
        )
        if key is None:
            raise TokenWrong("it names no key that the provider publishes")
        return key

    async def _published(self, fresh_for: float) -> list[PublishedKey]:
        if self._keys is None or self._clock.monotonic() - self._keys[0] >= fresh_for:
            answer = await self._ask("GET", (await self.metadata()).keys)
            self._keys = (self._clock.monotonic(), jwt.published_keys(_object(answer)))
        return self._keys[1]

    async def _person(self, known: Metadata, claims: Mapping[str, Any], tokens: Mapping[str, Any]) -> Identity:
        said = dict(claims)
        missing = {self.settings.groups_claim, self.settings.name_claim} - set(said)
        if missing and known.userinfo and "access_token" in tokens:
            more = await self._userinfo(known, str(tokens["access_token"]))
            if more.get("sub") != claims["sub"]:  # §5.3.2: it may be about another person
                raise ProviderRefused("The provider's userinfo is about another person.")
            said |= {name: more[name] for name in missing if name in more}
        if self.settings.groups_claim in (said.get("_claim_names") or {}):
            raise ProviderRefused(
                f"{self.settings.name} has too many groups of you to name them (it sent a link instead). "
                "Let it send only groups that are assigned to Holdfast."
            )
        sid = claims.get("sid")
        return Identity(
            subject=str(claims["sub"]),
            name=str(said.get(self.settings.name_claim, "")),
            groups=_groups(said.get(self.settings.groups_claim)),
            sid=sid if isinstance(sid, str) and len(sid) <= 255 else None,
        )

    async def _userinfo(self, known: Metadata, token: str) -> Mapping[str, Any]:
        answer = await self._ask("GET", known.userinfo, headers={"Authorization": f"Bearer {token}"})
        return _object(answer) if answer.status == 200 else {}

    # ── Out ──

    async def logged_out(self, token: str) -> tuple[str | None, str | None, str]:
        """Subject, session and id of a message that somebody logged out there (Back-Channel Logout §2.6)."""
        claims = await self._claims(token)
        events, subject, sid = claims.get("events"), claims.get("sub"), claims.get("sid")
        told = isinstance(events, dict) and isinstance(events.get(LOGGED_OUT), dict)
        if not told or "nonce" in claims or not (isinstance(subject, str) or isinstance(sid, str)):
            raise ProviderRefused("This is no message about a log-out.")
        if not isinstance(claims.get("jti"), str):
            raise ProviderRefused("The message has no id, so it could be repeated.")
        return subject if isinstance(subject, str) else None, sid if isinstance(sid, str) else None, claims["jti"]

    async def farewell(self, ours: PublicAddress) -> str:
        """Where the person can log out of the provider, too; empty if it has no such page, or does not answer."""
        try:
            there = (await self.metadata()).end_session
        except (UserError, TryLater):
            return ""
        asked = {"client_id": self.settings.client_id, "post_logout_redirect_uri": f"{ours.url}/login"}
        return _with(there, asked) if there else ""

    # ── What it publishes ──

    async def metadata(self) -> Metadata:
        if self._metadata is None or self._clock.monotonic() - self._metadata[0] >= FRESH_FOR:
            answer = await self._ask("GET", f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
            self._metadata = (self._clock.monotonic(), self._read(answer))
        return self._metadata[1]

    def _read(self, answer: Response) -> Metadata:
        found = _object(answer)
        if found.get("issuer") != self.settings.issuer:
            raise ProviderRefused(f"The provider calls itself {_plain(str(found.get('issuer')))}, not "
                                  f"{self.settings.issuer} (oidc.issuer).")  # fmt: skip
        ways = found.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        return Metadata(
            authorization=self._url(found, "authorization_endpoint"),
            token=self._url(found, "token_endpoint"),
            keys=self._url(found, "jwks_uri"),
            userinfo=self._url(found, "userinfo_endpoint", optional=True),
            end_session=self._url(found, "end_session_endpoint", optional=True),
            names_itself=found.get("authorization_response_iss_parameter_supported") is True,
            posts_secret="client_secret_basic" not in ways and "client_secret_post" in ways,
        )

    def _url(self, found: Mapping[str, Any], name: str, *, optional: bool = False) -> str:
        """Over TLS; a provider without it is one on this machine, for trials."""
        url = found.get(name)
        if url is None and optional:
            return ""
        plain = self.settings.issuer.startswith("http://")
        if not isinstance(url, str) or urlsplit(url).scheme not in (("https", "http") if plain else ("https",)):
            raise ProviderRefused(f"The provider publishes no good {name}.")
        return url

    async def _ask(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Response:
        given = {"Accept": "application/json", **(headers or {})}
        roots = self.settings.roots
        return await self._transport.request(
            Request(method=method, url=url, headers=given, body=body, deadline_for=10.0, max_body=MOST, roots=roots)
        )


def _check_claims(claims: Mapping[str, Any], chosen: ProviderSettings, clock: Clock) -> None:
    """OpenID Connect Core §3.1.3.7."""
    now, skew = clock.now().timestamp(), SKEW.total_seconds()
    audience = claims.get("aud")
    readers = audience if isinstance(audience, list) else [audience]
    expires, issued = claims.get("exp"), claims.get("iat")
    if claims.get("iss") != chosen.issuer:
        raise TokenWrong("another provider issued it")
    if chosen.client_id not in readers:
        raise TokenWrong("it is for another program (aud)")
    if claims.get("azp", chosen.client_id) != chosen.client_id or (len(readers) > 1 and "azp" not in claims):
        raise TokenWrong("it was given to another program (azp)")
    if not isinstance(expires, int | float) or now > expires + skew:
        raise TokenWrong("it has expired")
    if not isinstance(issued, int | float) or issued > now + skew:
        raise TokenWrong("it is from the future")
    subject = claims.get("sub")
    if subject is not None and not (isinstance(subject, str) and 0 < len(subject) <= 255):
        raise TokenWrong("it names no person")


def _nonce(browser: Secret[str], state: str) -> str:
    return hmac.new(browser.reveal().encode(), f"nonce {state}".encode(), hashlib.sha256).hexdigest()


def _verifier(browser: Secret[str], state: str) -> Secret[str]:
    return Secret(hmac.new(browser.reveal().encode(), f"pkce {state}".encode(), hashlib.sha256).hexdigest())


def _with(url: str, asked: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"


def _object(answer: Response) -> dict[str, Any]:
    try:
        return dict(strict_json.loads_object(answer.body, "The answer", limit=MOST))
    except AcmeError:
        raise TryLater("the OpenID provider answers with something else than JSON") from None


def _groups(claim: object) -> frozenset[str]:
    listed = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return frozenset(each for each in listed if isinstance(each, str))


def _plain(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:100]
