"""Makes issuers of stored rows, of whichever kind: settings checked, credentials opened."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping

from holdfast import kind_settings, plugins
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.reasons import Reason
from holdfast.engine.issuance.accounts import AcmeAccounts
from holdfast.errors import Refused
from holdfast.issuers.base import Issuer
from holdfast.issuers.kind import Parts
from holdfast.issuers.own_ca import OwnCaOrders
from holdfast.operations import remotes
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.ports import Clock, Transport
from holdfast.secret import Secret


def kinds() -> frozenset[str]:
    """The kinds of issuers that this installation can talk to."""
    return frozenset(plugins.kinds(plugins.ISSUERS))


def check(kind: str, settings: Mapping[str, object], credentials: Collection[str]) -> None:
    """Whether an issuer can be made of these; ValueError names the setting that is missing, unknown or malformed."""
    kind_settings.read(plugins.kinds(plugins.ISSUERS)[kind], settings, credentials)


class Upstream:
    """One for a process. Without `own_cas` it has no CA of its own."""

    def __init__(
        self, *, context: CertificateContext, own_cas: OwnCaOrders | None, transport: Transport, clock: Clock
    ) -> None:
        self._certificate_context = context
        self._own_cas = own_cas
        self._transport = transport
        self._clock = clock
        self._kinds = plugins.kinds(plugins.ISSUERS)
        self.accounts = AcmeAccounts(context=context, transport=transport, clock=clock)
        self._sessions: dict[str, dict[str, object]] = {}  # what issuers of one row remember, by its name and version

    async def make(self, row: IssuerRow) -> Issuer:
        kind = self._kinds.get(row.kind)
        if kind is None:
            why = f"This process cannot talk to {row.name}: {self._kinds.problem(row.kind)}."
            raise Refused(why, reason=Reason.UNKNOWN_ISSUER)
        try:
            settings = kind_settings.read(kind, row.settings, row.credentials)
        except ValueError as why:
            raise Refused(f"The settings of {row.name} cannot be used: {why}.", reason=Reason.ACCOUNT_REFUSED) from None
        opened = await remotes.opened(self._certificate_context.secret_store, row)
        parts = Parts(
            name=row.name,
            credentials={each: _text(secret) for each, secret in opened.items()},
            transport=self._transport,
            clock=self._clock,
            files=self._certificate_context.secret_store.files,
            memory=self._session(row),
            accounts=self.accounts,
            own_cas=self._own_cas,
        )
        made: Issuer = kind.make(settings, parts)
        return await made if inspect.isawaitable(made) else made

    async def probe(self, row: IssuerRow) -> str:
        return await (await self.make(row)).probe()

    def _session(self, row: IssuerRow) -> dict[str, object]:
        """Changed settings or credentials begin anew: nothing of the old account is carried over."""
        known = self._sessions.get(row.name, {})
        if known.get("version") != row.version:
            self._sessions[row.name] = known = {"version": row.version}
        return known


def _text(content: Secret[bytes]) -> Secret[str]:
    return Secret(content.reveal().decode("utf-8", "replace").strip())
