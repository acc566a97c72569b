"""The CAs of this process, opened: their keys in memory or in a device, their policy, and when they expire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from holdfast.config import Settings
from holdfast.core.key_kind import KeyKind
from holdfast.core.own_ca.ca import (
    CaOptions,
    CaPolicy,
    CaRow,
    CaState,
    ProfileOptions,
    RateLimit,
    SigningCertificateExpiry,
    needed_lifetime,
)
from holdfast.errors import TryLater, UserError
from holdfast.operations.installation.secret_store import SecretStore, ca_key
from holdfast.operations.own_ca.revocation import CRL
from holdfast.pki import chain as pki_chain
from holdfast.pki import keys
from holdfast.pki.certify import Unsigned, finish_aside
from holdfast.pki.chain import parse_bundle
from holdfast.pki.hsm import Pkcs11Signer, place_of
from holdfast.pki.in_thread import aside
from holdfast.pki.keys import EVERYDAY
from holdfast.pki.profile import AGENT_IDENTITY, Profile
from holdfast.pki.refused import SignerRefused
from holdfast.pki.signing import Signer, SigningCertificate, open_issuer, open_signer
from holdfast.ports import Clock
from holdfast.store.database import Database, Store
from holdfast.store.own_ca import cas
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from holdfast.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class Authority:
    """A CA that can sign."""

    id: str
    closed: bool = False  # no new accounts and orders; lists and revocations go on
    options: CaOptions
    issuer: SigningCertificate
    signer: Signer
    chain_pem: bytes  # the issuer and what stands above it, without the root
    root_pem: bytes
    alternates: tuple[bytes, ...]  # each a whole chain: the issuer, and what leads to another root
    version: int
    profiles: Mapping[str, Profile]

    def profile(self, name: str | None) -> Profile | None:
        """The profile of this name, the default one for None; None if there is no such profile."""
        if name == AGENT_IDENTITY.name:
            return AGENT_IDENTITY
        chosen = self.options.profile(name)
        return None if chosen is None else self.profiles[chosen.name]

    def ended(self, now: datetime) -> bool:
        """Whether its issuer is over: it signs nothing that anybody would believe."""
        return now >= self.issuer.certificate.not_valid_after_utc


class Authorities:
    """Opens CAs from the store, keeps them, and follows changes that other replicas make."""

    def __init__(
        self, *, db: Store, secret_store: SecretStore, policy: CaPolicy, clock: Clock, telemetry: Telemetry
    ) -> None:
        self.secret_store = secret_store
        self._db = db
        self._policy = policy
        self._clock = clock
        self._telemetry = telemetry
        self._opened: dict[str, Authority] = {}
        self._problems: dict[str, tuple[int, str]] = {}  # version, and why it could not be opened
        self._unsigned: dict[str, str] = {}  # why the last signature of a CA could not be had
        # By CA and secret or device: a change of other things keeps the key.
        self._signers: dict[tuple[str, str | None, str | None], Signer] = {}

    def get(self, ca: str) -> Authority | None:
        """From memory only: this is asked in every request."""
        return self._opened.get(ca)

    def all(self) -> list[Authority]:
        return list(self._opened.values())

    def known(self) -> set[str]:
        """Every CA that there is, whether it could be opened or not."""
        return self._opened.keys() | self._problems.keys()

    def problem(self, ca: str) -> str | None:
        """Why a CA that exists cannot sign here, or could not when it was last asked to."""
        found, held = self._problems.get(ca), self._opened.get(ca)
        if found is None and held is not None and held.ended(self._clock.now()):
            ends = held.issuer.certificate.not_valid_after_utc
            return f"Its issuer ended at {ends:%F %T}Z. Give it a later end: holdfast ca renew {ca}"
        return found[1] if found else self._unsigned.get(ca)

    async def sign(self, ca: Authority, content: Unsigned) -> bytes:
        """The certificate or list, signed; why it could not be is kept until the next signature of this CA."""
        try:
            if isinstance(self._db, Database) and (why := self._db.cannot_sign()):
                raise TryLater(f"Nothing can be signed: {why}", reason="CANNOT_BE_KEPT")
            der = await finish_aside(content, ca.signer)
        except (TryLater, UserError) as error:
            self._unsigned[ca.id] = str(error)
            raise
        self._unsigned.pop(ca.id, None)
        return der

    async def refresh(self) -> None:
        """Open new and changed CAs, drop deleted ones. A CA that cannot be opened hinders no other."""
        versions = await self._db.read(cas.versions)
        for ca in self.known() - versions.keys():
            self._opened.pop(ca, None)
            self._problems.pop(ca, None)
        for ca, version in versions.items():
            held = self._opened.get(ca)
            if held is None or held.version != version:
                await self._reopen(ca)

    async def _reopen(self, ca: str) -> None:
        row = await self._db.read(lambda tx: cas.get(tx, ca))
        if row is None:
            return
        try:
            opened = await self._open(row)
            await self._remember(row)
            self._opened[ca] = opened
            self._problems.pop(ca, None)
            self._telemetry.log.info("ca.opened", ca=ca, version=row.version, state=row.state)
        except TryLater as error:  # a device does not answer now: an open CA stays open
            self._told(row, str(error))
        except (UserError, LookupError) as error:
            self._opened.pop(ca, None)
            self._told(row, str(error))

    async def _remember(self, row: CaRow) -> None:
        """Where lists are to be found goes into certificates, and they keep it: each list has to name it, too."""
        url = self._policy.crl_url(row.id)
        if url in await self._db.read(lambda tx: cas.addresses(tx, row.id)):
            return

        def write(tx: Tx) -> None:
            if cas.remember_address(tx, row.id, url):
                for shard in range(row.options.shards):
                    jobs.bring_forward(tx, CRL, f"{row.id}/{shard}", tx.now())

        await self._db.write(write)

    def _told(self, row: CaRow, problem: str) -> None:
        if self._problems.get(row.id) != (row.version, problem):  # once, not every few seconds
            self._telemetry.log.error("ca.not_opened", ca=row.id, problem=problem)
        self._problems[row.id] = (row.version, problem)

    async def _open(self, row: CaRow) -> Authority:
        certificate = x509.load_der_x509_certificate(row.certificate)
        above = parse_bundle(row.above.encode()) if row.above else ()
        issuer = SigningCertificate(
            id=row.id,
            certificate=certificate,
            above=above,
            ca_issuers_url=self._policy.issuer_url(row.id),
            crl_url=self._policy.crl_url(row.id),
            shards=row.options.shards,
        )
        signer = await self._signer(row)
        if keys.spki(signer.public_key) != keys.spki(issuer.public_key):
            raise SignerRefused("signer-other-key", f"The key of CA {row.id!r} is not the one in its certificate.")
        return Authority(
            id=row.id,
            closed=row.state is CaState.CLOSED,
            options=row.options,
            issuer=open_issuer(issuer, dev=row.options.dev, now=self._clock.now()),
            signer=signer,
            chain_pem=pki_chain.certificates_pem([certificate, *above]),
            root_pem=row.root.encode(),
            alternates=tuple(chain.encode() for chain in row.alternates),
            version=row.version,
            profiles={each.name: profile_of(each) for each in row.options.profiles},
        )

    async def _signer(self, row: CaRow) -> Signer:
        place = (row.id, row.key_secret, row.key_device)
        if place not in self._signers:
            self._signers[place] = await self._open_signer(row)
        return self._signers[place]

    async def _open_signer(self, row: CaRow) -> Signer:
        if row.key_secret is not None:
            return open_signer(await self.secret_store.reveal(row.key_secret, ca_key(row.id)))
        return await aside(Pkcs11Signer, place_of(row.key_device or "", self.secret_store.files.read))


def profile_of(options: ProfileOptions) -> Profile:
    """ValueError if its numbers contradict each other."""
    return Profile(
        name=options.name,
        lifetime=timedelta(seconds=options.lifetime_s),
        max_lifetime=timedelta(seconds=options.max_lifetime_s),
        backdate=timedelta(seconds=options.backdate_s),
        client_auth=options.client_auth,
        common_name=options.common_name,
        must_staple=options.must_staple,
        key_kinds=frozenset(map(KeyKind, options.key_kinds)) or EVERYDAY,
    )


def expiries(tx: Tx) -> list[SigningCertificateExpiry]:
    """Of those that are open: one that is closed signs nothing that its end could cut."""
    return [expiry_of(row) for row in cas.everything(tx) if row.state is CaState.ACTIVE]


def expiry_of(row: CaRow) -> SigningCertificateExpiry:
    issuer = x509.load_der_x509_certificate(row.certificate)
    return SigningCertificateExpiry(
        ca=row.id,
        serial=f"{issuer.serial_number:x}",
        not_after=issuer.not_valid_after_utc,
        needs=needed_lifetime(row.options),
        root_here=row.root_secret is not None,
    )


def policy_of(settings: Settings, *, acme_port: int, publish_port: int) -> CaPolicy:
    """The policy of all CAs, from the settings. Addresses that are not set are made of the ports in use."""
    acme = settings.acme
    return CaPolicy(
        base_url=acme.base_url or f"https://localhost:{acme_port}",
        publish_url=acme.publish_url or f"http://127.0.0.1:{publish_port}",
        order_for=acme.order_lifetime,
        authz_for=acme.authz_lifetime,
        tries=acme.validation_tries,
        uncollected_after=acme.uncollected_after,
        pause_after=acme.pause_after,
        accounts_per_address=RateLimit(count=acme.accounts_per_address, span=timedelta(hours=3)),
        orders_per_account=RateLimit(count=acme.orders_per_account, span=timedelta(hours=3)),
        names_per_account=RateLimit(count=acme.names_per_account, span=timedelta(hours=3)),
        names_per_address=RateLimit(count=acme.names_per_address, span=timedelta(hours=3)),
        pending_per_account=acme.pending_per_account,
        pending_per_address=acme.pending_per_address,
        changes_per_account=RateLimit(count=acme.changes_per_account, span=timedelta(hours=3)),
        requests_per_account=RateLimit(count=acme.requests_per_account, span=timedelta(minutes=1)),
        requests_per_address=RateLimit(count=acme.requests_per_address, span=timedelta(minutes=1)),
        orders_per_identifier=RateLimit(count=acme.orders_per_identifier, span=timedelta(days=1)),
        failures_per_identifier=RateLimit(count=acme.failures_per_identifier, span=timedelta(hours=1)),
        terms_url=acme.terms_url,
        website=acme.website,
        caa_identities=acme.caa_identities,
        chaos_nonces=acme.chaos_nonces,
        repeat_finalize=acme.repeat_finalize,
    )
