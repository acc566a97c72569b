"""Sectigo Certificate Manager (SCM REST): enrolments that people approve, and "issued" that is not yet to be had.

It knows no idempotency key and shows no CSR. Our reference stands in the comments of each request, and is looked for
there before anything is requested again.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from typing import Any, Final

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import acme_certificate, chains, sectigo_order
from holdfast.issuers.base import Failed, Issued, Look, Pending, Placed, Proof, RenewalWindow, Uncertain, Wish
from holdfast.issuers.kind import Kind, Options, Parts
from holdfast.issuers.reading import words
from holdfast.issuers.rest import Headers, Reply, Rest, beforehand, segment
from holdfast.issuers.search import Search, resumed
from holdfast.issuers.sectigo_order import ALREADY_REVOKED, DIALECT, NOT_ISSUED, UNREACHABLE, Settings
from holdfast.issuers.triage import Verdict

_FORMAT: Final = "x509"  # the certificate with its chain, in PEM; its order is not relied upon
_PAGE: Final = 200
_MOST_PAGES: Final = 3
_MOST_DETAILS: Final = 40  # that are read, to find a request of ours
_DETAILS: Final = 6  # that are read in one claim
_ANY: Final = {"Accept": "*/*"}  # what is collected is no JSON
_REVOKED: Final = "-110"  # what says that there is nothing to collect, and never will be
_CLOCKS_DIFFER: Final = timedelta(days=1)  # it writes dates without a time
_DAY: Final = timedelta(days=1)
_REVOCATION: Final = {0: "unspecified", 1: "key compromise", 3: "affiliation changed", 4: "superseded",
                      5: "cessation of operation"}  # fmt: skip


class SectigoIssuer:
    """One account, one organization and one profile."""

    kind = "sectigo"
    binding = True

    def __init__(self, rest: Rest, settings: Settings, memory: MutableMapping[str, Any]) -> None:
        self._rest = rest
        self._settings = settings
        self._memory = memory
        self._path = f"/ssl/{settings.api_version}"

    # ── Ordering ──

    async def place(self, wish: Wish) -> Placed:
        before = self._previous(wish)
        if before is not None:
            body = sectigo_order.renewal(wish, self._settings)
            reply = await self._rest.post(f"{self._path}/renewById/{before}", "a renewal", body)
        else:
            cert_type = self._cert_type(wish)
            with beforehand():
                term = await self._term(wish, cert_type)
            body = sectigo_order.body(wish, self._settings, cert_type=cert_type, term=term)
            reply = await self._rest.post(f"{self._path}/enroll", "a new request", body)
        found = reply.json_object()
        if not isinstance(found.get("sslId"), int):
            raise reply.broken()
        renew = found.get("renewId")
        return Placed(ref={"ssl": found["sslId"], **({"renew": words(renew, 80)} if renew else {})})

    def _previous(self, wish: Wish) -> int | None:
        """What is to be renewed: for the same names only, as a renewal has those of the certificate before."""
        known = (wish.previous or {}).get("ssl") if wish.same_names else None
        return known if self._settings.renewals == "renew" and isinstance(known, int) else None

    def _cert_type(self, wish: Wish) -> int:
        if wish.profile is None:
            return self._settings.cert_type
        if not wish.profile.isdigit():
            raise Refused(
                f"Sectigo's profiles are numbers, and {wish.profile!r:.60} is none.", reason=Reason.PROFILE_UNKNOWN
            )
        return int(wish.profile)

    async def _term(self, wish: Wish, cert_type: int) -> int:
        """The configured one, or for a shorter wish the longest that is not longer: there is a list of them."""
        if wish.not_after is None:
            return self._settings.term
        days = max(1, round((wish.not_after - self._rest.clock.now()) / _DAY))
        if days >= self._settings.term:
            return self._settings.term
        profiles = [each for each in await self._types() if each["id"] == cert_type]
        fitting = [term for each in profiles for term in each["terms"] if isinstance(term, int) and term <= days]
        return max(fitting, default=self._settings.term)

    async def _types(self) -> list[dict[str, Any]]:
        asked = {"organizationId": str(self._settings.org_id)}
        reply = await self._rest.get(f"{self._path}/types", "the list of profiles", asked)
        found = [each for each in reply.json_list() if isinstance(each, dict) and isinstance(each.get("id"), int)]
        return [each | {"terms": each["terms"] if isinstance(each.get("terms"), list) else []} for each in found]

    # ── Finding again ──

    async def find(self, wish: Wish) -> Placed | Uncertain | None:
        """The list shows ids and names only, so each candidate is opened, the youngest first."""
        search = resumed(self._memory, wish.issuance, _DETAILS)
        candidates, whole = await self._listed(sectigo_order.common_name(wish))
        before = self._previous(wish)
        if before is not None:
            return await self._find_renewal([each for each in candidates if each > before], wish, search)
        for ssl in candidates[:_MOST_DETAILS]:
            if ssl in search.ruled_out:
                continue
            search.spend(self._rest.name)
            details = await self._details(ssl)
            if sectigo_order.is_ours(details, wish):
                return Placed(ref={"ssl": ssl})
            if _is_older(details, wish):
                return None
            search.ruled_out.add(ssl)
        return None if whole and len(candidates) <= _MOST_DETAILS else self._uncertain(candidates, wish)

    async def _listed(self, name: str) -> tuple[list[int], bool]:
        """The requests for a name, the youngest first, and whether these are all of them."""
        found: list[int] = []
        for page in range(_MOST_PAGES):
            asked = {
                "commonName": name, "orgId": str(self._settings.org_id), "size": str(_PAGE),
                "position": str(page * _PAGE),
            }  # fmt: skip
            reply = await self._rest.get(self._path, "our requests by their name", asked)
            listed = [each for each in reply.json_list() if isinstance(each, dict)]
            found += [each["sslId"] for each in listed if isinstance(each.get("sslId"), int)]
            if len(listed) < _PAGE:
                return sorted(set(found), reverse=True), True
        return sorted(set(found), reverse=True), False

    async def _find_renewal(self, candidates: list[int], wish: Wish, search: Search) -> Placed | Uncertain | None:
        """A renewal carries no comments of ours. What is issued shows its key; what is not, shows nothing."""
        open_ones: list[int] = search.cursor or []  # seen by this search, perhaps in claims before this one
        search.cursor = open_ones
        for ssl in candidates[:_MOST_DETAILS]:
            if ssl in search.ruled_out or ssl in open_ones:
                continue
            search.spend(self._rest.name)
            verdict = await self._verdict(ssl)
            if verdict is Verdict.ISSUED:
                search.spend(self._rest.name)
                if isinstance(await self._collect(ssl, wish), Issued):
                    return Placed(ref={"ssl": ssl})
            if verdict in (Verdict.FAILED, Verdict.ISSUED):  # one that is issued was looked at, and is not ours
                search.ruled_out.add(ssl)
            else:
                open_ones.append(ssl)
        search.cursor = None
        return self._uncertain(open_ones, wish) if open_ones or len(candidates) > _MOST_DETAILS else None

    async def _verdict(self, ssl: int) -> Verdict:
        reply = await self._rest.get(f"{self._path}/{ssl}", "a request")
        return reply.by_word(reply.json_object().get("status")).verdict

    def _uncertain(self, candidates: list[int], wish: Wish) -> Uncertain:
        shown = ", ".join(str(each) for each in candidates[:5])
        return Uncertain(
            why=f"{self._rest.name} has requests for {sectigo_order.common_name(wish)} that may be ours ({shown}) and "
            f"does not show whose they are. Look there for {wish.issuance}, and decline what is not wanted."
        )

    async def _details(self, ssl: int) -> dict[str, Any]:
        return (await self._rest.get(f"{self._path}/{ssl}", "a request")).json_object()

    # ── Looking ──

    async def look(self, ref: Mapping[str, Any], wish: Wish) -> Look:
        ssl = int(ref["ssl"])
        reply = await self._rest.get(f"{self._path}/{ssl}", "our request")
        if reply.is_gone:
            return Failed(why=f"{self._rest.name} does not know request {ssl} any more.", reason=Reason.ORDER_EXPIRED)
        details = reply.json_object()
        finding = reply.by_word(details.get("status"), sectigo_order.said(details))
        if finding.verdict is not Verdict.ISSUED:
            return finding.look()
        return await self._collect(ssl, wish)

    async def _collect(self, ssl: int, wish: Wish) -> Look:
        """HTTP 400 is how it says "not yet", and how it says "never": the code tells them apart."""
        path, asked = f"{self._path}/collect/{ssl}", {"format": _FORMAT}
        reply = await self._rest.get(path, "the certificate", asked, headers=_ANY)
        if UNREACHABLE & set(reply.codes) or not (reply.response.body.strip() or reply.finding):
            why = f"{self._rest.name} has issued it, and cannot hand it out yet."
            return Pending(why=why, word="Issued", after_s=_seconds(reply))
        if reply.finding is not None:
            if reply.finding.verdict is Verdict.PENDING or _REVOKED in reply.codes:
                return reply.finding.look()
            raise reply.finding.error()  # about us, or about the way: the order itself is issued, and paid for
        found = sectigo_order.certificates(reply.response.body)
        if not found:
            raise reply.broken()
        leaf = next((each for each in found if chains.is_for(each, wish.csr)), None)
        chain = None if leaf is None else chains.above(leaf, found)
        if chain is None:
            why = f"{self._rest.name} sent for {ssl} a certificate that is not for our key, or has no chain."
            return Failed(why=why, reason=Reason.WRONG_CERTIFICATE, retryable=False)
        return Issued(chain_pem=chain)

    # ── What ACME has steps for, and SCM has not ──

    async def answer(self, ref: Mapping[str, Any], proof: Proof) -> None:
        """Domains are validated in the account, not in the request."""

    async def finalize(self, ref: Mapping[str, Any], wish: Wish) -> None:
        """It was handed in with the request."""

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        return None

    # ── Taking back ──

    async def cancel(self, ref: Mapping[str, Any]) -> None:
        """What waits for approval is declined; what is at the CA cannot be called back, and is refused."""
        path = f"{self._path}/decline/{segment(ref['ssl'])}"
        reply = await self._rest.post(path, "a withdrawal", {"message": "It is not wanted any more."})
        if reply.is_gone or (
            reply.finding is not None and reply.finding.verdict is Verdict.FAILED and await self._over(ref)
        ):
            return
        reply.good()

    async def _over(self, ref: Mapping[str, Any]) -> bool:
        """Whether it ended without a certificate, perhaps by our own word, whose answer was lost."""
        return await self._verdict(int(ref["ssl"])) is Verdict.FAILED

    async def revoke(self, certificate: bytes, reason: int) -> None:
        """By serial number. One that is revoked already is what was wanted."""
        code = reason if reason in _REVOCATION else 0
        body = {"reasonCode": code, "reason": f"Asked for in Holdfast: {_REVOCATION[code]}."}
        serial = _with_colons(acme_certificate.leaf(certificate).serial_number)
        reply = await self._rest.post(f"{self._path}/revoke/serial/{segment(serial)}", "a revocation", body)
        if ALREADY_REVOKED in reply.codes:
            return
        if NOT_ISSUED in reply.codes:
            raise Refused(f"{self._rest.name}: only what is issued can be revoked.", reason=Reason.CA_REFUSED)
        reply.good()

    # ── Probing ──

    async def probe(self) -> str:
        """The login, the profile and its terms, without requesting anything."""
        settings = self._settings
        listed = await self._types()
        found = next((each for each in listed if each["id"] == settings.cert_type), None)
        if found is None:
            offered = ", ".join(f"{each['id']} {words(each.get('name'), 60)}" for each in listed[:20]) or "none"
            raise Refused(
                f"Sectigo has no profile {settings.cert_type} for organization {settings.org_id}; there are: {offered}."
                " Check the settings cert_type and org_id.",
                reason=Reason.PROFILE_UNKNOWN,
            )
        if found["terms"] and settings.term not in found["terms"]:
            offered = ", ".join(str(each) for each in found["terms"][:20])
            raise Refused(
                f"Profile {settings.cert_type} has no term of {settings.term} days; it has {words(offered, 120)}. "
                "Check the setting term.",
                reason=Reason.PROFILE_UNKNOWN,
            )
        return f"{self._rest.name} answers and knows our login; profile {words(found.get('name'), 80)}."


def _is_older(details: Mapping[str, Any], wish: Wish) -> bool:
    """Ids grow: what follows an entry from before our try is older still."""
    on = sectigo_order.requested_on(details)
    return on is not None and wish.asked_at is not None and on < (wish.asked_at - _CLOCKS_DIFFER).date()


def _with_colons(serial: int) -> str:
    text = f"{serial:x}".upper()
    text = text.rjust(len(text) + len(text) % 2, "0")
    return ":".join(text[at : at + 2] for at in range(0, len(text), 2))


def _seconds(reply: Reply) -> float | None:
    return None if reply.after is None else reply.after.total_seconds()


def _make(parts: Parts) -> SectigoIssuer:
    settings = Settings.read(parts.settings)
    headers: Headers = {
        "customerUri": settings.customer_uri,
        "login": settings.login,
        "password": parts.credentials["password"],
    }
    site = Options(parts.settings).site(settings.base_url, headers)
    return SectigoIssuer(Rest(parts.transport, parts.clock, site, DIALECT), settings, parts.memory)


KIND: Final = Kind(check=Settings.read, make=_make, needs=("password",))
