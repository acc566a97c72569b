"""Builds from Settings what keeps certificates: the CAs they come from, the solvers, the jobs and duties."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.ca_server import CaServer, system_resolvers
from holdfast.config import Settings
from holdfast.core.acme import Identifier
from holdfast.engine import account_key, lifecycle, notices, notify, proving
from holdfast.engine.issue import Tools
from holdfast.engine.kind import Kind
from holdfast.engine.proving import SolverRule
from holdfast.engine.replica import Every
from holdfast.engine.senders import Senders
from holdfast.engine.sweep import Owed
from holdfast.engine.upstream import KINDS, Upstream, check
from holdfast.errors import SettingRefused, StoreError
from holdfast.listening.bounds import Bounds
from holdfast.listening.told import ToldTally
from holdfast.network import SystemNet
from holdfast.operations import epochs, issuers, proofs
from holdfast.operations.front import Front
from holdfast.operations.issuers import IssuerExists
from holdfast.operations.issuing import Keeper
from holdfast.operations.vault import Vault
from holdfast.ports import Clock, Files, Points, Random, no_points
from holdfast.secret import Secret
from holdfast.solvers import configured, tls_alpn_listener
from holdfast.solvers.configured import SolverTools
from holdfast.store.database import Store
from holdfast.telemetry import Telemetry
from holdfast.traced import TracedTransport
from holdfast.world import HttpTransport

OWN: Final = "own"  # the name of our own CA among those that certificates can come from
SETTING: Final = "keeping.solvers_file"
POLLED: Final = ("digicert", "sectigo", "entrust", "globalsign")  # kinds of CAs that have a section of their own


class CertificateKeeper:
    """One replica's part in keeping certificates. `prepare` before the engine starts."""

    def __init__(
        self,
        db: Store,
        vault: Vault,
        ca: CaServer,
        *,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        points: Points = no_points,
    ) -> None:
        self._settings: Settings = vault.settings
        self._clock, self._telemetry = clock, telemetry
        self.keeper = Keeper(db=db, random=random, vault=vault, approval_for=self._settings.keeping.approval_for)
        transport = TracedTransport(HttpTransport(points), telemetry.traces)
        self._upstream = upstream = Upstream(keeper=self.keeper, desk=ca.desk, transport=transport, clock=clock)
        self.senders = Senders(vault=vault, transport=transport, clock=clock)
        self._tools = Tools(
            keeper=self.keeper,
            make_issuer=upstream.make,
            solver_for=proving.by_rules(self._rules(vault.files, random)),
            telemetry=telemetry,
            poll_windows={kind: getattr(self._settings, kind).poll_window for kind in POLLED},
        )
        self._notices = notify.Tools(
            db=db, make_sender=self.senders.open, clock=clock, random=random, telemetry=telemetry
        )
        self.front = Front(
            keeper=self.keeper,
            issuer_kinds=KINDS,
            probe=upstream.probe,
            fit=check,
            post=self.senders,
            default_issuers=(OWN,),
        )

    async def prepare(self) -> None:
        """Our own CA is there from the first start; others are added by their operators."""
        solvers = solvers_digest(self._settings.keeping.solvers_file, self.keeper.vault.files)
        await epochs.of_solvers(self.keeper, solvers)
        first = self._settings.acme.first_ca
        if first and not await issuers.all_issuers(self.keeper):
            with contextlib.suppress(IssuerExists):  # another replica was quicker
                await issuers.add(
                    self.keeper, OWN, kind="local", kinds=KINDS, settings={"ca": first}, actor="system"
                )  # fmt: skip

    def kinds(self) -> list[Kind]:
        changed = account_key.kind(self.keeper, self._upstream.change_key)
        return [*lifecycle.kinds(self._tools), changed, *notices.kinds(self._notices)]

    def families(self) -> list[Owed]:
        return [*lifecycle.families(self.keeper), *notices.families(self._notices)]

    def duties(self) -> list[Every]:
        told, pace = self._settings.notification, self._settings.scheduler
        return [
            *lifecycle.duties(
                self.keeper,
                renewal=pace.renewal_interval,
                ask=pace.ari_interval,
                turn=pace.turns_interval,
                approval=pace.approval_interval,
                cleanup=pace.cleanup_interval,
                history_for=self._settings.engine.history_for,
            ),
            *notices.duties(
                self._notices,
                retry=told.retry_interval,
                process=told.process_interval,
                ends=told.expiry_interval,
                cleanup=pace.cleanup_interval,
                history_for=self._settings.engine.history_for,
                lease_ttl=self._settings.engine.lease_ttl,
            ),
        ]

    async def http01(self, token: str) -> str | None:
        return await proofs.http01(self.keeper.db, token)

    @contextlib.asynccontextmanager
    async def showing(self, line: tls_alpn_listener.Line | None, bounds: Bounds) -> AsyncIterator[None]:
        """Answer CAs that ask for proofs of tls-alpn-01, of whichever replica made them."""
        if line is None:
            yield
            return
        tally = ToldTally("tls_alpn", self._telemetry)
        async with tls_alpn_listener.showing(line, self._tls_alpn01, self._clock, bounds, tally):
            where = "{}:{}".format(*line.getsockname()[:2])
            self._telemetry.log.info("tls_alpn.listening", address=where)
            yield

    async def _tls_alpn01(self, identifier: Identifier) -> str | None:
        try:
            return await proofs.tls_alpn01(self.keeper.db, identifier.value)
        except StoreError as error:
            self._telemetry.log.warning("tls_alpn.not_answered", name=identifier.value, error=str(error))
            return None

    # ── Solvers ──

    def _rules(self, files: Files, random: Random) -> list[SolverRule]:
        """Those of the operator's file, in its order; then, for every name, proofs that this server answers itself."""
        put, delete = proving.in_store(self.keeper)
        tools = SolverTools(
            files=files,
            net=SystemNet(),
            random=random,
            resolvers=self._settings.acme.resolvers or system_resolvers(files),
            python=sys.executable,
            put=put,
            delete=delete,
            tls_alpn_shown=bool(self._settings.keeping.tls_alpn_listen),
        )
        path = self._settings.keeping.solvers_file
        named = [] if path is None else [_rule(each, path, files, tools) for each in _tables(path, files)]
        return [*named, SolverRule(names=("*",), solver=configured.make("http", {}, {}, tools))]


def solvers_digest(path: Path | None, files: Files) -> str:
    """Of the rules and their secrets, made slowly: it is kept, and must not help anybody to guess one of those."""
    tables = [] if path is None else _tables(path, files)
    named = [Path(file) for table in tables for file in table.get("secret_files", {}).values()]
    content = json.dumps(tables, sort_keys=True, default=str).encode()
    if not named:
        return hashlib.sha256(content).hexdigest()
    content += b"".join(hashlib.sha256(_secret(files, each).reveal().encode()).digest() for each in named)
    return hashlib.pbkdf2_hmac("sha256", content, b"holdfast solver rules", 100_000).hex()


def _tables(path: Path, files: Files) -> list[Mapping[str, Any]]:
    try:
        content = files.read(path)
        tables = tomllib.loads((content or b"").decode()).get("solver", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingRefused(SETTING, f"{path} cannot be read: {error}") from None
    if content is None:
        raise SettingRefused(SETTING, f"there is no file {path}")
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise SettingRefused(SETTING, f"{path}: expected tables called [[solver]]")
    return tables


def _rule(table: Mapping[str, Any], path: Path, files: Files, tools: SolverTools) -> SolverRule:
    """One [[solver]]: kind, names, the kind's own options, and the files of its secrets."""
    options = {name: value for name, value in table.items() if name not in ("kind", "names", "secret_files")}
    try:
        names = tuple(str(each).lower() for each in table["names"])
        secrets = {name: _secret(files, Path(file)) for name, file in table.get("secret_files", {}).items()}
        return SolverRule(names=names, solver=configured.make(str(table["kind"]), options, secrets, tools))
    except KeyError as missing:
        raise SettingRefused(SETTING, f"{path}: a [[solver]] has no {missing.args[0]!r}") from None
    except (TypeError, ValueError) as error:
        raise SettingRefused(SETTING, f"{path}: {error}") from None


def _secret(files: Files, path: Path) -> Secret[str]:
    try:
        content = files.read(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if not content:
        raise ValueError(f"there is no secret in {path}")
    return Secret(content.decode().rstrip("\r\n"))
