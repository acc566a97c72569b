"""The store, the data folder and the bounds of listeners, as the settings name them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.config import Settings
from holdfast.core.people import group_rule
from holdfast.core.public_address import PublicAddress
from holdfast.errors import SettingRefused, StoreDamaged
from holdfast.listening.bounds import LOBBY, PROBES_KEPT, Bounds, share_descriptors
from holdfast.operations.context import PeopleServices
from holdfast.operations.notifications import routing
from holdfast.operations.people.provider import Provider, ProviderSettings
from holdfast.ports import Clock, Files, Points, Transport
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.store.witness import Witnessing
from holdfast.witness_file import WitnessFile

if TYPE_CHECKING:  # commands load this module, and need no logging
    from holdfast.telemetry import Log

MEGABYTE: Final = 1024 * 1024
OWN_FOLDER: Final = "Name a folder that the user of the Holdfast process can create and write to."


def open_store(
    settings: Settings,
    clock: Clock,
    points: Points,
    *,
    committed: Callable[[Tx], None] = lambda tx: None,
    damaged: Callable[[StoreDamaged], None] = lambda error: None,
    witnessed: bool = False,
) -> Database:
    """The store the settings name. Refuses at once what must not be used; connects only when first asked."""
    deadline = settings.store.deadline
    engine = _engine(settings, clock)
    witness = open_witness(settings, clock, points) if witnessed else None
    return compose(
        engine, clock=clock, points=points, deadline=deadline, committed=committed, damaged=damaged, witness=witness
    )


def open_witness(settings: Settings, clock: Clock, points: Points) -> Witnessing:
    chosen = settings.witness
    folder, name = chosen.folder or settings.store.data_dir, "witness.folder" if chosen.folder else "store.data_dir"
    make_folder(folder, name)
    try:
        return Witnessing(WitnessFile(folder, limit=chosen.megabytes * MEGABYTE), clock, points)
    except OSError as why:
        raise SettingRefused(name, f"the witness in {folder} cannot be opened: {why.strerror}", OWN_FOLDER) from None


def compose(
    engine: Engine,
    *,
    clock: Clock,
    points: Points,
    deadline: timedelta,
    committed: Callable[[Tx], None] = lambda tx: None,
    damaged: Callable[[StoreDamaged], None] = lambda error: None,
    witness: Witnessing | None = None,
) -> Database:
    """Build the store on an engine. Alert routing is given to it here, and nowhere else in the product."""
    return Database(
        engine, clock=clock, points=points, deadline=deadline, before_commit=routing.route, committed=committed,
        damaged=damaged, witness=witness,
    )  # fmt: skip


def open_for_migration(settings: Settings, clock: Clock, points: Points) -> Database | None:
    """The store by the address that is set for changes of its schema; None if there is none."""
    if settings.store.migrate_url is None:
        return None
    from holdfast.store.postgres import PostgresEngine

    engine = PostgresEngine(settings.store.migrate_url, connections=1)
    return compose(engine, clock=clock, points=points, deadline=settings.store.deadline)


def _engine(settings: Settings, clock: Clock) -> Engine:
    file = settings.store.sqlite_file
    if file is None:
        from holdfast.store.postgres import PostgresEngine

        pooled = settings.store.pooler == "transaction"
        return PostgresEngine(settings.store.url, connections=settings.store.connections, pooled=pooled)
    make_folder(file.parent, "store.url" if settings.store.url else "store.data_dir")
    return SqliteEngine(file, clock)


def make_folder(path: Path, setting: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as why:
        raise SettingRefused(setting, f"the folder {path} cannot be made: {why.strerror}", OWN_FOLDER) from None


def listener_bounds(settings: Settings, *, listeners: int, log: Log | None = None) -> Bounds:
    """For each of so many listeners. With too few descriptors for all, fewer connections than the settings ask for."""
    wanted = settings.listeners
    had = share_descriptors(
        wanted.connections + PROBES_KEPT + LOBBY, listeners=listeners, reserved=wanted.reserved_descriptors
    )
    connections = max(1, had.connections - PROBES_KEPT - LOBBY)
    if connections < wanted.connections and log is not None:
        log.warning(
            "listeners.fewer_connections", wanted=wanted.connections, connections=connections,
            descriptors=had.allowed, fix="Raise the hard limit of open files (systemd: LimitNOFILE=).",
        )  # fmt: skip
    return Bounds(
        connections=connections,
        per_address=wanted.connections_per_address,
        uncounted=tuple(ip_network(each) for each in settings.server.trusted_proxies),
        probes=PROBES_KEPT,
        head_size=wanted.head_size,
        head_fields=wanted.head_fields,
        head_for=wanted.head_timeout.total_seconds(),
        body_for=wanted.body_timeout.total_seconds(),
        idle_for=wanted.idle_timeout.total_seconds(),
    )


def people_services(settings: Settings, address: PublicAddress, provider: Provider | None = None) -> PeopleServices:
    chosen = settings.people
    return PeopleServices(
        address=address,
        idle_for=chosen.session_idle,
        lives_for=chosen.session_lifetime,
        link_for=chosen.link_lifetime,
        provider=provider,
    )


def openid_provider(settings: Settings, transport: Transport, clock: Clock, files: Files) -> Provider | None:
    """The OpenID provider that the settings name."""
    chosen = settings.oidc
    if not chosen.issuer:
        return None
    if not chosen.client_id:
        raise SettingRefused("oidc.client_id", "a provider is named, and the name of Holdfast there is not")
    rules = tuple(rule for text in chosen.groups if (rule := group_rule(text)) is not None)
    roots = b"" if chosen.roots_file is None else files.read(chosen.roots_file)
    if roots is None:
        raise SettingRefused("oidc.roots_file", f"there is no file {chosen.roots_file}")
    return Provider(
        ProviderSettings(
            issuer=chosen.issuer,
            client_id=chosen.client_id,
            client_secret=chosen.client_secret,
            name=chosen.name,
            scopes=chosen.scopes,
            name_claim=chosen.name_claim,
            groups_claim=chosen.groups_claim,
            rules=rules,
            roots=roots,
        ),
        transport,
        clock,
    )
