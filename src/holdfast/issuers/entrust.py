"""Entrust CA Gateway (API v1): a client certificate is all that it knows us by, and a certificate is all that counts.

What its status words promise differs between the CAs behind it, so a certificate in the answer decides before any word.
There is no key by which an order is the same order again: after an answer that was lost its list of events is read.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers import acme_certificate, chains, client_certificate, entrust_events, entrust_order, triage
from holdfast.issuers.base import Issued, Look, Pending, Placed, Proof, RenewalWindow, Uncertain, Wish
from holdfast.issuers.entrust_order import Profile
from holdfast.issuers.entrust_reading import DIALECT as DIALECT
from holdfast.issuers.entrust_reading import chain_of, data, hex_or_none, inside, message, serial_of, spelled
from holdfast.issuers.kind import Kind, Options, Parts
from holdfast.issuers.reading import instant, words
from holdfast.issuers.remembered import Remembered
from holdfast.issuers.rest import Reply, Rest, beforehand, segment
from holdfast.issuers.search import resumed
from holdfast.issuers.triage import Verdict
from holdfast.secret import Secret

SHOWN_AFTER: Final = timedelta(minutes=3)  # what a profile issues at once is among the events by then
_PAGES_LOOKED_UP, _PAGES_LOOKED_AT = 8, 2  # in one claim, for an order that may be there and for one that is
_KEPT_FOR: Final = 3600.0  # seconds, of what its CA and its profile say of themselves
_NOT_OFFERED: Final = (404, 405, 501)
_ACTED: Final = frozenset({"completed", "succeeded", "revoked"})  # what an action is called that was carried out
_REASONS: Final = {
    0: "unspecified", 1: "keyCompromise", 2: "caCompromise", 3: "affiliationChanged", 4: "superseded",
    5: "cessationOfOperation", 6: "certificateHold", 9: "privilegeWithdrawn",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How to order at one CA behind a gateway, by its settings."""

    ca_id: str
    profile_id: str
    approval: bool = True  # a person may have to say yes: what waits for them cannot be looked up
    variables: Mapping[str, str] = field(default_factory=dict)  # of the subject, as the profile names them
    validity_days: int = 90  # of certificates that ask for no lifetime; without any word a gateway may give years


class EntrustIssuer:
    """One CA and one profile behind one gateway."""

    kind = "entrust"
    binding = True

    def __init__(self, rest: Rest, terms: Terms, memory: Remembered, searches: MutableMapping[str, Any]) -> None:
        self._rest = rest
        self._terms = terms
        self._memory = memory
        self._searches = searches
        self._path = f"/v1/certificate-authorities/{segment(terms.ca_id)}"

    # ── Ordering ──

    async def find(self, wish: Wish) -> Placed | Uncertain | None:
        """What was issued for our key shows among the events; what waits for a person is nowhere to be seen."""
        if (issued := await self._among_events(wish, wish.asked_at, _PAGES_LOOKED_UP)) is not None:
            return Placed(ref={"certificate": chains.text(issued), "serial": serial_of(issued)})
        if not self._terms.approval:
            self._none_yet(wish.asked_at)
            return None
        return Uncertain(
            why=f"{self._rest.name} may have our order and cannot be asked while it waits for approval. Look for the "
            f"reference {wish.issuance} in its list of enrollments. A profile that issues at once has approval=false.",
            for_a_person=True,
        )

    def _none_yet(self, asked_at: datetime | None) -> None:
        """Where nobody has to approve, what was asked for shows within moments; until then it may be on its way."""
        now = self._rest.clock.now()
        if asked_at is not None and now < asked_at + SHOWN_AFTER:
            why = f"{self._rest.name} may still be at work on what was asked for; it is looked for again."
            raise TryLater(why, after=asked_at + SHOWN_AFTER - now, reason=Reason.CA_STILL_PENDING)

    async def place(self, wish: Wish) -> Placed:
        with beforehand():
            profile = await self._profile(wish.profile or self._terms.profile_id)
        now = self._rest.clock.now()
        end = wish.not_after or now + timedelta(days=self._terms.validity_days)
        body = entrust_order.body(wish, profile, variables=self._terms.variables, lasts=end - now)
        reply = await self._rest.post(f"{self._path}/enrollments", "a new enrollment", body)
        enrollment = inside(reply, "enrollment")
        found, number = _leaf(enrollment.get("body"), wish), words(enrollment.get("id") or "", 200)
        said = reply.by_word(enrollment.get("status"), message(reply))
        if found is None and said.verdict is Verdict.FAILED:  # the only answer that a gateway without GET ever gives
            raise said.error()
        if found is None and not number:
            raise reply.broken()
        ref = {
            "enrollment": number or None,
            "placed_at": self._rest.clock.now().astimezone(UTC).isoformat(),
            "serial": serial_of(found) if found else hex_or_none(enrollment.get("serialNumber")),
            "certificate": chains.text(found) if found else None,
        }
        return Placed(ref={name: value for name, value in ref.items() if value is not None})

    async def _profile(self, name: str) -> Profile:
        """What it wants in a request; read before ordering, so that a wrong name is told as such."""

        async def read() -> Profile:
            reply = await self._rest.get(f"{self._path}/profiles/{segment(name)}", "its profile")
            if reply.status == 404 and "cagw-4018" not in reply.codes:
                raise Refused(
                    f"{self._rest.name} has no profile {words(name, 80)!r} in {self._terms.ca_id}, or no such CA. "
                    "Check the settings profile_id and ca_id.",
                    reason=Reason.PROFILE_UNKNOWN,
                )
            return entrust_order.read_profile(name, inside(reply, "profile"))

        return await self._memory.kept((self._path, "profile", name), read, _KEPT_FOR)

    # ── Looking ──

    async def look(self, ref: Mapping[str, Any], wish: Wish) -> Look:
        if known := chains.read(ref.get("certificate")):
            return await self._issued(wish, known[0])
        if "enrollment" in ref:
            reply = await self._rest.get(f"{self._path}/enrollments/{segment(ref['enrollment'])}", "our enrollment")
            if reply.status not in _NOT_OFFERED:
                return await self._judged(wish, reply, inside(reply, "enrollment"), "body")
        return await self._elsewhere(ref, wish)

    async def _judged(self, wish: Wish, reply: Reply, found: Mapping[str, Any], content: str) -> Look:
        """The certificate first, then the word."""
        if (leaf := _leaf(found.get(content), wish)) is not None:
            return await self._issued(wish, leaf, *chains.read(found.get(content)), *chain_of(found))
        if found.get(content):
            raise reply.broken()
        return reply.by_word(found.get("status"), message(reply)).look()

    async def _elsewhere(self, ref: Mapping[str, Any], wish: Wish) -> Look:
        """For a gateway that does not show enrollments: the certificate by its serial, or by our key."""
        if "serial" in ref:
            reply = await self._rest.get(f"{self._path}/certificates/{ref['serial']}", "our certificate")
            if reply.status not in _NOT_OFFERED:
                return await self._judged(wish, reply, inside(reply, "certificate"), "certificateData")
        issued = await self._among_events(wish, instant(ref.get("placed_at")), _PAGES_LOOKED_AT)
        if issued is not None:
            return await self._issued(wish, issued)
        return Pending(why=f"{self._rest.name} took the order and does not show it; it is waited for.")

    async def _among_events(self, wish: Wish, since: datetime | None, pages: int) -> x509.Certificate | None:
        search = resumed(self._searches, f"{wish.issuance}/events", pages)
        asked_at = since or self._rest.clock.now() - timedelta(days=1)
        return await entrust_events.find(self._rest, self._path, wish, asked_at, search)

    async def _issued(self, wish: Wish, leaf: x509.Certificate, *beside: x509.Certificate) -> Look:
        if not chains.is_for(leaf, wish.csr):
            return chains.not_ours(self._rest.name)
        above = chains.above(leaf, [*beside, *await self._authorities()])
        if above is None:
            why = f"{self._rest.name} issued it and does not show the CA that signed it. Check the setting ca_id."
            return Pending(why=why, word="issued")
        return Issued(chain_pem=above)

    async def _authorities(self) -> tuple[x509.Certificate, ...]:
        """The CA and those above it: left out of its answers unless they are asked for."""

        async def read() -> tuple[x509.Certificate, ...]:
            fields = {"$fields": "ca.certificate,ca.chain"}
            ca = inside(await self._rest.get(self._path, "its CA", fields), "ca")
            return (*data(ca.get("certificate")), *chain_of(ca))

        return await self._memory.kept((self._path, "chain"), read, _KEPT_FOR)

    # ── What else there is ──

    async def answer(self, ref: Mapping[str, Any], proof: Proof) -> None:
        """Nothing has to be proved: its account may have any name, or may not."""

    async def finalize(self, ref: Mapping[str, Any], wish: Wish) -> None:
        """The CSR went with the order."""

    async def cancel(self, ref: Mapping[str, Any]) -> None:
        """Its API has no such call. What it has decided meanwhile needs none."""
        if "certificate" in ref or "enrollment" not in ref:
            return
        reply = await self._rest.get(f"{self._path}/enrollments/{segment(ref['enrollment'])}", "our enrollment")
        if reply.status not in _NOT_OFFERED:
            found = inside(reply, "enrollment")
            if found.get("body") or reply.by_word(found.get("status")).verdict is not Verdict.PENDING:
                return
        raise Refused(
            f"{self._rest.name} has no way to withdraw enrollment {ref['enrollment']}. Have it denied there.",
            reason=Reason.CA_REFUSED,
        )

    async def revoke(self, certificate: bytes, reason: int) -> None:
        """Again is harmless: it says so itself (succeedIfAlreadyInRequestedState)."""
        serial = acme_certificate.leaf(certificate).serial_number
        action = {"type": "RevokeAction", "reason": _REASONS.get(reason, "unspecified"), "comment": "by Holdfast"}
        for name in dict.fromkeys((spelled(serial), f"{serial:040x}", f"{serial:x}")):  # gateways differ
            path = f"{self._path}/certificates/{name}/actions"
            reply = await self._rest.post(path, "a revocation", {"action": action})
            if reply.status != 404:
                break
        try:
            done = inside(reply, "action")
        except Refused:
            if await self._is_revoked(name):
                return
            raise
        word = triage.folded(done.get("status"))
        if word in _ACTED:
            return
        revoked = await self._is_revoked(name)
        if word == "rejected" and not revoked:
            said = words(done.get("reason") or "no more is said")
            raise Refused(f"{self._rest.name} rejected the revocation: {said}", reason=Reason.CA_REFUSED)
        if revoked is False:
            why = f"{self._rest.name} took the revocation ({words(done.get('status'), 40)}) and has not done it yet."
            raise TryLater(why, reason=Reason.CA_STILL_PENDING)

    async def _is_revoked(self, serial: str) -> bool | None:
        """By the certificate's own status; None: this gateway does not show it."""
        reply = await self._rest.get(f"{self._path}/certificates/{serial}", "a certificate")
        if reply.finding is not None or reply.status in _NOT_OFFERED:
            return None
        return triage.folded(inside(reply, "certificate").get("status")) == "revoked"

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        return None

    async def probe(self) -> str:
        ca = inside(await self._rest.get(self._path, "its CA"), "ca")
        profile = await self._profile(self._terms.profile_id)
        named = words(ca.get("name") or self._terms.ca_id, 80)
        ends = client_certificate.until(self._rest.site.identity)
        return f"{self._rest.name} knows us; CA {named}, profile {words(profile.name or profile.id, 80)}; {ends}."


def _leaf(content: object, wish: Wish) -> x509.Certificate | None:
    """Of the certificates in a body the one for our key; if there is none, the first: it is not what was asked for."""
    found = chains.read(content)
    return next((each for each in found if chains.is_for(each, wish.csr)), found[0] if found else None)


# ── Settings ──


def _terms(options: Options) -> Terms:
    return Terms(
        ca_id=options.text("ca_id"),
        profile_id=options.text("profile_id"),
        approval=options.flag("approval", default=True),
        variables=options.mapping("subject_variables"),
        validity_days=options.number("validity_days", 90, most=1200) or 90,
    )


def _base(options: Options) -> str:
    """With the path of the gateway, without the version: …/cagw."""
    return options.address().removesuffix("/v1")


def _check(settings: Mapping[str, Any]) -> None:
    options = Options(settings)
    _base(options)
    _terms(options)
    options.text("client_id", "")
    client_certificate.named_by(options)
    options.done()


def _make(parts: Parts) -> EntrustIssuer:
    options = Options(parts.settings)
    client = options.text("client_id", "")
    headers = {"ca-client-id": Secret(client)} if client else {}
    site = options.site(_base(options), headers, client_certificate.shown_by(options, parts))
    memory: Remembered = parts.memory.setdefault("remembered", Remembered(parts.clock))
    return EntrustIssuer(Rest(parts.transport, parts.clock, site, DIALECT), _terms(options), memory, parts.memory)


KIND: Final = Kind(check=_check, make=_make, may=client_certificate.CREDENTIALS)
