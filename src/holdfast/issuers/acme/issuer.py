"""CAs that speak ACME (RFC 8555): ours and others', with profiles, renewal information (RFC 9773) and other chains."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, timedelta
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core import backoff
from holdfast.core.kind import Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import chains, reading
from holdfast.issuers.acme import order as acme_order
from holdfast.issuers.acme import reading as acme_reading
from holdfast.issuers.acme.account import key_authorization
from holdfast.issuers.acme.order import Authorization, CaOrder
from holdfast.issuers.acme.settings import (
    CREDENTIALS,
    EAB_KEY,
    PRESETS,
    PRIVATE,
    AcmeSettings,
    binding_fits,
    limits_for,
)
from holdfast.issuers.acme.wire import AcmeReply, CaAccount, Eab, Wire, b64
from holdfast.issuers.base import (
    ChallengeResponse,
    Failed,
    Issued,
    Look,
    NeedsProof,
    OrderRef,
    OrderRequest,
    Pending,
    Placed,
    Ready,
    RenewalWindow,
)
from holdfast.issuers.kind import IssuerKind, Parts
from holdfast.pki import chain
from holdfast.pki.keys import PrivateKey
from holdfast.pki.refused import ChainRefused

_MOST_ALTERNATES: Final = 8
_MOST_PAGES: Final = 5  # of the list of orders
_MOST_ORDERS: Final = 20  # that are looked at, to find one again
_LATE: Final = timedelta(minutes=5)  # by which clocks may differ
_WINDOW_LOW, _WINDOW_HIGH = timedelta(minutes=1), timedelta(days=1)
_ASK_AGAIN_S: Final = 6 * 3600.0
_POLL_LOW: Final = timedelta(seconds=1)


class AcmeIssuer:
    """One account at one CA. It remembers nothing: what it needs again is in the `ref` that it hands out."""

    binding = False

    def __init__(self, wire: Wire, account: CaAccount) -> None:
        self._wire = wire
        self._place = wire.place
        self._account = account
        self.account_url = account.url

    # ── Ordering ──

    async def find_order(self, request: OrderRequest) -> Placed | None:
        """An open order for the same names. It cannot be another's: one that was finalized is not open any more."""
        for url in (await self._orders())[-_MOST_ORDERS:][::-1]:
            reply = await self._wire.fetch(url, self._account, "an order of ours")
            if 400 <= reply.status < 500 and reply.word != "rateLimited":  # forgotten, or put away
                continue
            order = acme_order.read_order(reply.json(), self._place)
            if order.status in ("pending", "ready") and _serves(order, request):
                return self._placed(url, order)
        return None

    async def _orders(self) -> list[str]:
        """The account's orders, as far as the CA lists them (§7.1.2.1); most do not."""
        shown = (await self._wire.fetch(self._account.url, self._account, "our account")).json()
        page: object = shown.get("orders")
        found: list[str] = []
        for _ in range(_MOST_PAGES):
            if not isinstance(page, str):
                break
            reply = await self._wire.fetch(page, self._account, "our orders")
            if reply.status in (404, 405, 501):  # an address that leads nowhere, as some CAs give
                break
            listed = reading.items(reply.json(), "orders", f"The list of orders of {self._place.name}", most=10_000)
            found += [self._place.checked(each, "an order") for each in listed]
            page = next(iter(acme_reading.links(reply.response.headers.get("link", ""), "next")), None)
        return found

    async def place_order(self, request: OrderRequest) -> Placed:
        directory = await self._wire.directory()
        payload: dict[str, object] = {"identifiers": [each.to_json() for each in request.identifiers]}
        if request.profile is not None and directory.profiles:  # a CA without profiles has one kind of certificate
            if request.profile not in directory.profiles:
                raise _no_such_profile(self._place.name, request.profile, directory.profiles)
            payload["profile"] = request.profile
        if request.not_after is not None:
            payload["notAfter"] = request.not_after.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if request.replaces is not None and directory.renewal_info is not None:
            payload["replaces"] = request.replaces
        reply = await self._wire.post(directory.new_order, payload, self._account, "a new order")
        if "replaces" in payload and _is_about_replacing(reply):
            raise Refused(f"{self._place.name}: {reply.problem}", reason=Reason.REPLACES_REJECTED)
        if "notAfter" in payload and _is_about_the_end(reply):
            raise Refused(f"{self._place.name}: {reply.problem}", reason=Reason.LIFETIME_REJECTED)
        order = acme_order.read_order(reply.json(), self._place)
        ready = order.status == "ready" and order.identifiers == {*request.identifiers}  # all was proved not long ago
        return self._placed(reply.location(self._place), order, ready=ready)

    def _placed(self, url: str, order: CaOrder, *, ready: bool = False) -> Placed:
        """With the account: no other can see the order."""
        return Placed(ref={"order": url, "finalize": order.finalize, "account": self._account.url}, ready=ready)

    # ── Looking ──

    async def order_status(self, ref: OrderRef, request: OrderRequest) -> Look:
        reply = await self._wire.fetch(ref["order"], self._account, "our order")
        if reply.status == 404:
            return Failed(why=f"{self._place.name} does not know the order any more.", reason=Reason.ORDER_EXPIRED)
        order = acme_order.read_order(reply.json(), self._place)
        if order.identifiers != {*request.identifiers}:
            return Failed(why=f"{self._place.name} has other names in our order.", reason=Reason.WRONG_CERTIFICATE)
        match order.status:
            case "pending":
                return await self._look_at_proofs(order, reply)
            case "ready":
                return self._expired(order) or Ready()
            case "processing":
                return Pending(why=f"{self._place.name} is at work.", after_s=self._after(reply), word=order.status)
            case "valid":
                return await self._download(order, request)
            case "invalid":
                return acme_order.why_failed(order, await self._authorizations(order), self._place)
        raise reading.unreadable(f"The state of an order of {self._place.name}")

    def _expired(self, order: CaOrder) -> Failed | None:
        if order.expires_at is None or self._wire.clock.now() < order.expires_at + _LATE:
            return None
        return Failed(why=f"The order at {self._place.name} has expired.", reason=Reason.ORDER_EXPIRED)

    async def _look_at_proofs(self, order: CaOrder, reply: AcmeReply) -> Look:
        if (expired := self._expired(order)) is not None:
            return expired
        authorizations = await self._authorizations(order)
        if any(each.status not in ("pending", "valid") or each.disproved for each in authorizations):
            return acme_order.why_failed(order, authorizations, self._place)
        untold = [each for each in authorizations if each.status == "pending" and not _is_told(each)]
        choices = tuple(self._proofs(each) for each in untold)
        if not all(choices):
            name = next(each.identifier.value for each, offered in zip(untold, choices, strict=True) if not offered)
            why = f"{self._place.name} offers no challenge for {name} that is known here."
            return Failed(why=why, reason=Reason.NO_SOLVER, retryable=False)
        if choices:
            return NeedsProof(choices=choices)
        return Pending(why=f"{self._place.name} validates the names.", after_s=self._after(reply), word=order.status)

    async def _authorizations(self, order: CaOrder) -> tuple[Authorization, ...]:
        found = []
        for url in order.authorizations:
            reply = await self._wire.fetch(url, self._account, "an authorization")
            found.append(acme_order.read_authorization(reply.json(), self._place, url, order.identifiers))
        return tuple(found)

    def _proofs(self, authorization: Authorization) -> tuple[ChallengeResponse, ...]:
        return tuple(
            ChallengeResponse(
                type=each.type,
                identifier=authorization.identifier,
                token=each.token,
                key_authorization=key_authorization(each.token, self._account),
                ref={"challenge": each.url, "authorization": authorization.url},
            )
            for each in authorization.challenges
            if each.status == "pending"
        )

    def _after(self, reply: AcmeReply) -> float | None:
        header = reply.response.headers.get("retry-after")
        asked = backoff.retry_after(header, self._wire.clock.now(), low=_POLL_LOW)
        return None if asked is None else asked.total_seconds()

    # ── The certificate ──

    async def _download(self, order: CaOrder, request: OrderRequest) -> Look:
        if order.certificate is None:
            raise reading.unreadable(f"A finished order of {self._place.name}, which names no certificate,")
        reply = (await self._wire.fetch(order.certificate, self._account, "the certificate")).good()
        first, wanted = reply.response.body, request.preferred_chain
        try:
            preferred = wanted is None or chains.leads_to(first, wanted)
            chain.parse_bundle(first)
        except ChainRefused as why:
            said = f"{self._place.name} sent no chain of certificates. {why}"
            return Failed(why=said, reason=Reason.WRONG_CERTIFICATE)
        return Issued(chain_pem=first if preferred else await self._alternate(reply, wanted or "") or first)

    async def _alternate(self, reply: AcmeReply, wanted: str) -> bytes | None:
        """Another chain of the certificate (§7.4.2), if one leads there; chains that cannot be read are skipped."""
        offered = acme_reading.links(reply.response.headers.get("link", ""), "alternate")
        for url in [each for each in offered if self._place.allows(each)][:_MOST_ALTERNATES]:
            other = (await self._wire.fetch(url, self._account, "another chain")).good().response.body
            with suppress(ChainRefused):
                if chains.leads_to(other, wanted):
                    return other
        return None

    # ── Telling ──

    async def answer(self, ref: OrderRef, response: ChallengeResponse) -> None:
        reply = await self._wire.post(
            response.ref["challenge"], {}, self._account, f"{response.type} of {response.identifier.value}"
        )
        if reply.word in ("malformed", "unauthorized") and await self._is_decided(response):
            return  # it was told before, and what came of it shows at the next look
        reply.good()

    async def _is_decided(self, response: ChallengeResponse) -> bool:
        shown = (await self._wire.fetch(response.ref["authorization"], self._account, "an authorization")).json()
        return shown.get("status") != "pending"

    async def finalize(self, ref: OrderRef, request: OrderRequest) -> None:
        reply = await self._wire.post(ref["finalize"], {"csr": b64(request.csr)}, self._account, "the request for it")
        if not 200 <= reply.status < 300 and reply.word != "rateLimited" and await self._is_finalized(ref):
            return
        reply.good()

    async def _is_finalized(self, ref: OrderRef) -> bool:
        """Whether the CSR got there before; then it is the same one, for it was stored first."""
        shown = (await self._wire.fetch(ref["order"], self._account, "our order")).json()
        return acme_order.read_order(shown, self._place).status in ("processing", "valid")

    async def cancel(self, ref: OrderRef) -> None:
        """ACME cannot cancel orders; deactivating pending authorizations ends them. Valid authorizations are kept."""
        reply = await self._wire.fetch(ref["order"], self._account, "our order")
        if reply.status == 404:
            return
        order = acme_order.read_order(reply.json(), self._place)
        if order.status == "pending":
            for each in await self._authorizations(order):
                if each.status == "pending":
                    await self._wire.post(each.url, {"status": "deactivated"}, self._account, "an authorization")

    async def revoke(self, certificate: bytes, reason: int, *, by: PrivateKey | None = None) -> None:
        """By the account that ordered it (§7.6). One that is revoked already is what was wanted."""
        payload = {"certificate": b64(chains.leaf_of(certificate).public_bytes(Encoding.DER)), "reason": reason}
        url = (await self._wire.directory()).revoke_cert
        reply = await self._wire.post(url, payload, by or self._account, "a revocation")
        if reply.word != "alreadyRevoked":
            reply.good()

    async def revoke_by_key(self, certificate: bytes, reason: int, key: PrivateKey) -> None:
        """By the key of the certificate itself (§7.6): for one that another account ordered."""
        await self.revoke(certificate, reason, by=key)

    # ── Asking ──

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        base = (await self._wire.directory()).renewal_info
        name = chains.renewal_name(chains.leaf_of(certificate))
        if base is None or name is None:
            return None
        reply = await self._wire.get(f"{base.rstrip('/')}/{name}", "renewal information")
        if reply.status in (400, 404, 409):  # it does not know this certificate
            return None
        return chains.renewal_window(reply.json(), self._ask_again(reply))

    def _ask_again(self, reply: AcmeReply) -> float:
        header, now = reply.response.headers.get("retry-after"), self._wire.clock.now()
        asked = backoff.retry_after(header, now, low=_WINDOW_LOW, high=_WINDOW_HIGH)
        return _ASK_AGAIN_S if asked is None else asked.total_seconds()

    async def probe(self) -> str:
        directory = await self._wire.directory()
        shown = (await self._wire.fetch(self._account.url, self._account, "our account")).json()
        if shown.get("status") != "valid":
            said = reading.words(shown.get("status"), 40)
            raise Refused(f"{self._place.name}: our account is {said}.", reason=Reason.ACCOUNT_REFUSED)
        profiles = ", ".join(sorted(directory.profiles)) or "none"
        window = "yes" if directory.renewal_info else "no"
        terms = f", which agreed to {directory.terms}" if directory.terms else ""
        said = f"{self._place.name} answers and knows our account{terms}"
        return f"{said}; profiles: {profiles}; renewal information: {window}."


def _serves(order: CaOrder, request: OrderRequest) -> bool:
    """Few CAs show the profile of an order; where it is shown it must be the right one."""
    return order.identifiers == {*request.identifiers} and (
        None in (request.profile, order.profile) or request.profile == order.profile
    )


def _is_told(authorization: Authorization) -> bool:
    return any(each.status in ("processing", "valid") for each in authorization.challenges)


def _no_such_profile(ca: str, wanted: str, offered: Mapping[str, str]) -> Refused:
    return Refused(
        f"{ca} has no profile {reading.words(wanted, 80)!r}; it has {', '.join(sorted(offered))}.",
        reason=Reason.PROFILE_UNKNOWN,
    )


def _is_about_replacing(reply: AcmeReply) -> bool:
    """RFC 9773 §5 has a word for one case only; for the others CAs use several, and say what they mean."""
    if reply.word == "alreadyReplaced" or reply.status == 409:
        return True
    said = reply.problem.detail.lower() if reply.problem else ""
    return reply.word in ("malformed", "unauthorized", "") and 400 <= reply.status < 500 and "replace" in said


def _is_about_the_end(reply: AcmeReply) -> bool:
    """Whether the CA accepts no notAfter at all; RFC 8555 has no word for it (Boulder calls it malformed)."""
    said = reply.problem.detail.lower() if reply.problem else ""
    general = any(word in said for word in ("support", "not allowed", "not permitted"))
    return reply.word == "malformed" and 400 <= reply.status < 500 and "notafter" in said and general


# ── The kind ──


async def _make(settings: AcmeSettings, parts: Parts) -> AcmeIssuer:
    if parts.accounts is None:
        raise Refused("This process keeps no accounts at ACME servers.", reason=Reason.UNKNOWN_ISSUER)
    wire = parts.accounts.wire(parts.name, settings.place())
    account = await parts.accounts.account(
        parts.name,
        wire,
        contacts=settings.contacts,
        terms_agreed=settings.terms_agreed,
        eab=_eab(settings, parts),
    )
    return AcmeIssuer(wire, account)


def _eab(settings: AcmeSettings, parts: Parts) -> Eab | None:
    key = parts.credentials.get(EAB_KEY)
    if not settings.eab_kid or not key:
        return None
    try:
        return Eab.from_text(settings.eab_kid, key)
    except ValueError as error:
        raise Refused(f"The EAB key of {parts.name} cannot be read: {error}.", reason=Reason.EAB_REQUIRED) from None


ACME: Final[IssuerKind[AcmeSettings]] = Kind(
    name="acme",
    summary="A CA that speaks ACME (RFC 8555), public or private.",
    settings=AcmeSettings,
    credentials=CREDENTIALS,
    fits=binding_fits,
    limits=PRIVATE,
    limits_for=limits_for,
    traits=frozenset({Trait.HAS_ACCOUNT}),
    presets=PRESETS,
    make=_make,
    address="directory",
)
