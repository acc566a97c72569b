"""One frozen Settings, read once at start from a TOML file and the environment; each key has a sentence."""
# ruff: noqa: RUF009  (a call of setting() is the declaration of a field)

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from holdfast.config_values import (
    ADDRESS,
    CA_NAME,
    COUNT,
    DOMAINS,
    GROUP_RULES,
    INTERVAL,
    ISSUER_URL,
    LISTEN_OR_NOT,
    LOGS,
    NETWORKS,
    PATH,
    POOLER,
    PORT,
    PUBLIC_URL,
    RESOLVERS,
    SECRET,
    STORE_URL,
    SYSLOG,
    TEXT,
    URL,
    WORDS,
    YES_NO,
    SettingKind,
    address_of,
    choice,
    duration,
    whole,
)
from holdfast.core.durations import brief
from holdfast.core.public_address import PublicAddress
from holdfast.errors import SettingRefused
from holdfast.secret import MASK, Secret

POD_VARIABLE: Final = "POD_NAME"  # what a pod is told of itself (the Downward API): the host name may be the node's
SettingSource = Literal["default", "file", "environment", "secret file"]
CONFIG_VARIABLE: Final = "HOLDFAST_CONFIG"  # names the TOML file; read by the command line, not by load()
SERVER_VARIABLE: Final = "HOLDFAST_SERVER_URL"  # of commands: a server elsewhere, and the token for it
TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"  # noqa: S105  (its name, not its value)
CONTEXT_VARIABLE: Final = "HOLDFAST_CONTEXT"  # of commands: which of the servers that were logged in to
PKI_VARIABLES: Final = ("HOLDFAST_PKI_ROOT_PASSPHRASE", "HOLDFAST_PKI_INTERMEDIATE_PASSPHRASE")  # of holdfast pki
SQLITE_NAME: Final = "holdfast.sqlite"
KEY_NAME: Final = "holdfast.key"
SOCKET_NAME: Final = "holdfast.sock"

# ── The settings: load() checks what people write; code may build any value, such as a test's loop of 1 ms ──


def setting(default: Any, doc: str, kind: SettingKind) -> Any:
    """Declare a key; its sentence is read at run time, by `config show` and for the reference page."""
    if isinstance(default, Secret):  # unhashable, which dataclasses take for mutable
        return field(default_factory=lambda: default, metadata={"doc": doc, "kind": kind})
    value = None if default is None else kind.parse(default)
    return field(default=value, metadata={"doc": doc, "kind": kind})


def _host_and_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    listen: str = setting("127.0.0.1:8630", "Host and port to answer on; port 0 takes any free one.", ADDRESS)
    public_url: str = setting(
        "", "Address of the pages in browsers; empty: http://localhost and the port of server.listen.", PUBLIC_URL
    )
    trusted_proxies: tuple[str, ...] = setting([], "Networks whose X-Forwarded-For is believed.", NETWORKS)

    @property
    def address(self) -> tuple[str, int]:
        """Host, without brackets, and port."""
        return _host_and_port(self.listen)

    @property
    def in_the_clear(self) -> bool:
        """Whether tokens may cross a network unencrypted: others reach it, and no proxy with TLS is named."""
        return not _is_here(self.address[0]) and not self.trusted_proxies

    def public_address(self, port: int | None = None) -> PublicAddress:
        """`port`: the one that port 0 became."""
        return PublicAddress(self.public_url or f"http://localhost:{port or self.address[1]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """What clients may take of this process, at each of its listeners."""

    connections: int = setting(1000, "Connections that one listener holds at a time, at most.", whole(8, 100_000))
    connections_per_address: int = setting(
        100, "Of these, connections from one address (IPv6: one /64), proxies aside; 0: no limit.", COUNT
    )
    head_size: int = setting(65_536, "Bytes of a request before its body, at most.", whole(4_096, 1_048_576))
    head_fields: int = setting(100, "Header fields of a request, at most.", whole(20, 1_000))
    head_timeout: timedelta = setting(
        "10s", "How long a client may take over a TLS handshake, and over the head of a request.", duration("1s", "5m")
    )
    body_timeout: timedelta = setting(
        "30s", "How long a body slower than 64 KiB/s may take, or an answer wait to be read.", duration("1s", "1h")
    )
    idle_timeout: timedelta = setting("30s", "How long a connection waits for another request.", duration("1s", "1h"))
    reserved_descriptors: int = setting(
        512, "File descriptors that connections leave to the engine: store, CAs, DNS.", whole(64, 100_000)
    )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    name: str = setting("", "Name of this replica as people see it; empty: POD_NAME, or the host name.", TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    data_dir: Path = setting("data", "Directory for everything that is kept on this machine.", PATH)
    url: Secret[str] = setting(Secret(""), "Database to use; without it, SQLite in data_dir.", STORE_URL)
    url_file: Path | None = setting(None, "File to read store.url from.", PATH)
    deadline: timedelta = setting("10s", "How long to wait for the answer to one store call.", INTERVAL)
    connections: int = setting(2, "Connections to PostgreSQL that write; three more read and listen.", whole(1, 64))
    pooler: str = setting(
        "none",
        "What pools connections before PostgreSQL; by session: none.",
        POOLER,
    )
    migrate_url: Secret[str] | None = setting(
        None, "PostgreSQL without a pooler, for changes of the schema; without it, store.url.", STORE_URL
    )
    migrate_url_file: Path | None = setting(None, "File to read store.migrate_url from.", PATH)

    @property
    def sqlite_file(self) -> Path | None:
        """Where the SQLite database is; None on PostgreSQL."""
        if not self.url:
            return self.data_dir / SQLITE_NAME
        scheme, _, path = self.url.reveal().partition(":///")
        return Path(path) if scheme == "sqlite" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessSettings:
    """What this replica writes down of its CAs before anybody hears of it, for a database that loses commits."""

    folder: Path | None = setting(
        None, "Folder of the witness; without it, store.data_dir. Another disk than SQLite's is safer.", PATH
    )
    megabytes: int = setting(256, "How long the witness becomes; the oldest entries go first.", whole(1, 100_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSettings:
    folder: Path | None = setting(
        None, "Folder for backups, on another disk or machine; without it there are none.", PATH
    )
    interval: timedelta = setting("1d", "How often a backup is made.", duration("1m"))
    keep: int = setting(14, "Backups that stay in the folder; older ones are removed.", whole(1, 10_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    file: Path | None = setting(None, "File of the key that encrypts what the store keeps secret.", PATH)
    passphrase: Secret[str] | None = setting(None, "Passphrase to derive the key from, instead of a key file.", SECRET)
    passphrase_file: Path | None = setting(None, "File to read keys.passphrase from.", PATH)
    previous_passphrase: Secret[str] | None = setting(
        None, "Passphrase in use until now, while rotating to a new one.", SECRET
    )
    previous_passphrase_file: Path | None = setting(None, "File to read previous_passphrase from.", PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    retry_interval: timedelta = setting("5m", "How often failed jobs are put back to work.", INTERVAL)
    reconcile_interval: timedelta = setting("1m", "How often work that lost its job gets one.", INTERVAL)
    timeout_interval: timedelta = setting("10m", "How often overdue jobs are ended.", INTERVAL)
    cleanup_interval: timedelta = setting("1h", "How often rows that are not needed any more are removed.", INTERVAL)
    selfcheck_interval: timedelta = setting("1m", "How often the replica checks itself.", INTERVAL)
    renewal_interval: timedelta = setting("1m", "How often to look which certificates are due.", INTERVAL)
    ari_interval: timedelta = setting(
        "5m", "How often to look for renewal windows that CAs are to be asked for.", INTERVAL
    )
    turns_interval: timedelta = setting("5m", "How often turns at a CA's limits are dealt by risk.", INTERVAL)
    approval_interval: timedelta = setting("10m", "How often overdue approvals are expired.", INTERVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    slots: int = setting(64, "Jobs of one kind that this replica runs at a time, at most.", whole(1, 256))
    poll_interval: timedelta = setting("1s", "How often to look for due jobs unprompted.", INTERVAL)
    lease_ttl: timedelta = setting("30s", "How long a silent replica keeps its jobs.", duration("3s"))
    drain: timedelta = setting("30s", "How long jobs may go on after a stop.", duration("0s", "30s"))
    history_for: timedelta = setting("90d", "How long finished jobs and events stay.", duration("1d"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Acme:
    listen: str = setting("127.0.0.1:8631", "Host and port of the ACME server, over TLS; port 0: any.", ADDRESS)
    base_url: str = setting("", "Address that clients use; empty: https://localhost and the port.", address_of("https"))
    publish_url: str = setting(
        "", "Address of CRLs and issuers in certificates; empty: http://127.0.0.1 and server.listen's port.",
        address_of("http"),
    )  # fmt: skip
    first_ca: str = setting("default", "Name of the CA that the first start makes; empty: none.", CA_NAME)
    resolvers: tuple[str, ...] = setting(
        [], "DNS resolvers to validate with; empty: those of /etc/resolv.conf.",
        RESOLVERS,
    )  # fmt: skip
    networks: tuple[str, ...] = setting([], "Networks that may be validated though they are private.", NETWORKS)
    http_port: int = setting(80, "Port at which http-01 challenges are fetched.", PORT)
    tls_port: int = setting(443, "Port at which tls-alpn-01 challenges are tried.", PORT)
    order_lifetime: timedelta = setting("7d", "How long an order may wait to be finished.", duration("1m", "90d"))
    authz_lifetime: timedelta = setting(
        "30d", "How long a validated authorization is used again.", duration("1m", "398d")
    )
    validation_timeout: timedelta = setting("10s", "How long one look at a challenge may take.", duration("1s", "60s"))
    validation_tries: int = setting(3, "How often a challenge is tried before it has failed.", whole(1, 10))
    caa_identities: tuple[str, ...] = setting(
        [], "Names of this CA in CAA records; empty: CAA is not looked at.",
        DOMAINS,
    )  # fmt: skip
    terms_url: str = setting("", "Terms of service that clients must agree to.", URL)
    website: str = setting("", "Page about this CA.", URL)
    accounts_per_address: int = setting(500, "New or changed accounts from one address in 3 hours; 0: no limit.", COUNT)
    orders_per_account: int = setting(3000, "New orders of one account in 3 hours; 0: no limit.", COUNT)
    names_per_account: int = setting(10_000, "Names in new orders of one account in 3 hours; 0: no limit.", COUNT)
    names_per_address: int = setting(20_000, "Names in new orders from one address in 3 hours; 0: no limit.", COUNT)
    pending_per_account: int = setting(5000, "Names of one account that wait to be proved; 0: no limit.", COUNT)
    pending_per_address: int = setting(10_000, "Names from one address that wait to be proved; 0: no limit.", COUNT)
    changes_per_account: int = setting(100, "Changes of contacts or key by one account in 3 hours; 0: any.", COUNT)
    requests_per_account: int = setting(12_000, "Signed requests of one account in 1 minute; 0: no limit.", COUNT)
    requests_per_address: int = setting(24_000, "Signed requests from one address in 1 minute; 0: no limit.", COUNT)
    orders_per_identifier: int = setting(1000, "Certificates of one CA for one name in a day; 0: no limit.", COUNT)
    failures_per_identifier: int = setting(60, "Failed validations of one name of an account in 1 hour; 0: any.", COUNT)
    pause_after: int = setting(30, "Failures in a row that pause a name of an account; 0: never.", COUNT)
    uncollected_after: timedelta = setting("15m", "When an unfetched certificate is reported.", duration("1m"))
    chaos_nonces: int = setting(
        0, "Per cent of requests whose nonce is refused at first, to try clients out.", whole(0, 100)
    )
    repeat_finalize: bool = setting(False, "Answer a repeated finalize with the order, not an error.", YES_NO)
    listener_backdate: timedelta = setting(
        "5m",
        "How long before now the listener's own certificate begins, for clocks that are late.",
        duration("0s", "1h"),
    )
    lint: str = setting("own", "Rules that certificates must pass before they are signed.", choice("own", "pkilint"))

    @property
    def published_here_only(self) -> bool:
        """Clients are elsewhere, and certificates name an address of this machine for their CRLs."""
        theirs, named = urlsplit(self.base_url).hostname or "localhost", urlsplit(self.publish_url).hostname
        return not _is_here(theirs) and _is_here(named or "127.0.0.1")

    @property
    def address(self) -> tuple[str, int]:
        """Host, without brackets, and port."""
        return _host_and_port(self.listen)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Agents: hosts that carry out deployments by themselves. They reach us at acme.listen."""

    ca: str = setting("", "CA of ours that signs identities of agents; empty: acme.first_ca.", CA_NAME)
    identity_lifetime: timedelta = setting(
        "7d", "How long an identity of an agent is valid; it is renewed at half of that.", duration("1h", "30d")
    )
    poll: timedelta = setting(
        "4m", "How long a request of an agent waits for work; less than balancers cut.", duration("1s", "15m")
    )
    parked: int = setting(10_000, "Requests of agents that wait for work in this process, at most.", COUNT)
    recoveries: int = setting(5, "How often a new agent may recover by its binding key.", COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    approval_for: timedelta = setting(
        "3d", "How long a second person has to approve; then it is rejected.", duration("1m")
    )
    solvers_file: Path | None = setting(
        None, "TOML file of [[solver]] tables: how challenge responses are published.", PATH
    )
    tls_alpn_listen: str = setting(
        "", "Host and port that show proofs of tls-alpn-01, reached as port 443 of your names; empty: none.",
        LISTEN_OR_NOT,
    )  # fmt: skip

    @property
    def tls_alpn_address(self) -> tuple[str, int] | None:
        """Host, without brackets, and port; None if there is no such listener."""
        return _host_and_port(self.tls_alpn_listen) if self.tls_alpn_listen else None


_NEAR: Final = [
    "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "127.0.0.0/8", "::1/128",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """How served certificates are looked at."""

    check_interval: timedelta = setting("10m", "How often each endpoint is checked.", INTERVAL)
    timeout: timedelta = setting("10s", "How long one handshake with an endpoint may take.", duration("1s", "60s"))
    networks: tuple[str, ...] = setting(
        _NEAR, "Private networks whose endpoints may be checked; metadata addresses of clouds never are.", NETWORKS
    )
    resolvers: tuple[str, ...] = setting(
        [], "DNS resolvers to find endpoints with; empty: those of /etc/resolv.conf.",
        RESOLVERS,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """Where certificates may be looked for."""

    networks: tuple[str, ...] = setting(
        [], "Networks that may be scanned for certificates; no other address is dialled. Empty: none is.", NETWORKS
    )
    logs: tuple[str, ...] = setting(
        [], "CT logs that may be read, as https:// or file:// addresses; no other is. Empty: none is.", LOGS
    )
    rate: int = setting(30, "New connections in a second, of all scans together.", whole(1, 1000))
    timeout: timedelta = setting("5s", "How long one handshake of a scan may take.", duration("1s", "60s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSettings:
    """How certificates are installed on targets."""

    local_file: Path | None = setting(
        None, "TOML file of this host: folders that targets may write to, and programs that they may run.", PATH
    )
    interval: timedelta = setting("10s", "How often to look which deployments are due.", INTERVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    retry_interval: timedelta = setting(
        "2m", "How often failed notifications are looked for that are due again.", INTERVAL
    )
    process_interval: timedelta = setting("1m", "How often to check outages and heartbeats.", INTERVAL)
    expiry_interval: timedelta = setting("1h", "How often to look which certificates expire soon.", INTERVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    file: Path | None = setting(None, "File that audit rows are appended to as well, as lines of JSON.", PATH)
    syslog: str = setting("", "Syslog that they are sent to as well, such as tcp://log.example.com:601.", SYSLOG)
    interval: timedelta = setting("2s", "How often new rows are handed on.", INTERVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: str = setting("info", "Least severe line to write.", choice("debug", "info", "warning", "error"))
    format: str = setting(
        "auto", "Write lines for programs (json) or for people (console); auto: console at a terminal.",
        choice("auto", "json", "console"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    interval: timedelta = setting("10s", "How often gauges are read from the store, at most.", duration("0s", "10m"))
    certificate_series: int = setting(1000, "Certificates with series of their own, at most; 0: none.", COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledCas:
    """What holds for all issuers of one kind, where the settings of one of them say nothing."""

    poll_max_wait_seconds: int = setting(
        600, "Seconds after which a pending order is polled ever more seldom, unless its issuer has its own; 0: 600.",
        whole(0, 86_400, empty=0),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Otel:
    endpoint: str = setting("", "OTLP/HTTP address for traces, such as http://127.0.0.1:4318; empty: none.", URL)
    headers: Secret[str] | None = setting(None, "Headers to send there, as name=value,name=value.", SECRET)
    headers_file: Path | None = setting(None, "File to read otel.headers from.", PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleSettings:
    """How long people stay logged in."""

    session_idle: timedelta = setting("1h", "A browser that is not used for so long is logged out.", duration("1m"))
    session_lifetime: timedelta = setting(
        "12h", "A browser is logged out after this, however much it is used.", duration("1m", "30d")
    )
    link_lifetime: timedelta = setting(
        "1d", "How long a link to set an account up, or to log in once, can be followed.", duration("1m", "30d")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Oidc:
    """The OpenID provider by which people log in."""

    issuer: str = setting("", "Address of the OpenID provider, as it calls itself; empty: none.", ISSUER_URL)
    client_id: str = setting("", "Name of Holdfast at the provider.", TEXT)
    client_secret: Secret[str] | None = setting(None, "Secret of Holdfast at the provider; none: PKCE only.", SECRET)
    client_secret_file: Path | None = setting(None, "File to read oidc.client_secret from.", PATH)
    name: str = setting("your company", "Name on the button to log in with.", TEXT)
    scopes: tuple[str, ...] = setting(["openid", "profile", "email"], "Scopes to ask for.", WORDS)
    name_claim: str = setting("preferred_username", "Claim that a person's name is taken from.", TEXT)
    groups_claim: str = setting("groups", "Claim that lists a person's groups.", TEXT)
    groups: tuple[str, ...] = setting(
        [], "Who may do what, by group; the first that fits decides about the role.", GROUP_RULES
    )
    roots_file: Path | None = setting(
        None, "PEM file of roots that the provider is trusted by; without it, the system's.", PATH
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    server: ServerSettings = field(default_factory=ServerSettings)
    listeners: Listeners = field(default_factory=Listeners)
    replica: ReplicaSettings = field(default_factory=ReplicaSettings)
    people: PeopleSettings = field(default_factory=PeopleSettings)
    oidc: Oidc = field(default_factory=Oidc)
    store: StoreSettings = field(default_factory=StoreSettings)
    witness: WitnessSettings = field(default_factory=WitnessSettings)
    backup: BackupSettings = field(default_factory=BackupSettings)
    keys: Keys = field(default_factory=Keys)
    scheduler: Scheduler = field(default_factory=Scheduler)
    engine: EngineSettings = field(default_factory=EngineSettings)
    acme: Acme = field(default_factory=Acme)
    agents: AgentSettings = field(default_factory=AgentSettings)
    keeping: Keeping = field(default_factory=Keeping)
    digicert: PolledCas = field(default_factory=PolledCas)
    sectigo: PolledCas = field(default_factory=PolledCas)
    entrust: PolledCas = field(default_factory=PolledCas)
    globalsign: PolledCas = field(default_factory=PolledCas)
    endpoints: EndpointSettings = field(default_factory=EndpointSettings)
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    deployment: DeploymentSettings = field(default_factory=DeploymentSettings)
    notification: NotificationSettings = field(default_factory=NotificationSettings)
    audit: Audit = field(default_factory=Audit)
    log: LogSettings = field(default_factory=LogSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    otel: Otel = field(default_factory=Otel)
    # Where each value that is no default came from: names, never values.
    provenance: tuple[tuple[str, SettingSource], ...] = field(default=(), repr=False, compare=False)

    @property
    def poll_windows(self) -> Mapping[str, timedelta]:
        """By kind of issuer."""
        polled = {f.name: getattr(self, f.name) for f in fields(self) if SECTIONS.get(f.name) is PolledCas}
        return {kind: timedelta(seconds=section.poll_max_wait_seconds) for kind, section in polled.items()}

    @property
    def key_file(self) -> Path:
        return self.keys.file or self.store.data_dir / KEY_NAME


DEFAULTS: Final = Settings()
SECTIONS: Final = {f.name: type(getattr(DEFAULTS, f.name)) for f in fields(Settings) if f.name != "provenance"}
FIELDS: Final = {f"{name}.{f.name}": f for name, section in SECTIONS.items() for f in fields(section)}
KINDS: Final[Mapping[str, SettingKind]] = {key: f.metadata["kind"] for key, f in FIELDS.items()}


def variable(key: str) -> str:
    """Name the environment variable of a key: store.url → HOLDFAST_STORE_URL."""
    return f"HOLDFAST_{key.replace('.', '_').upper()}"


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────


def load(path: Path | None, env: Mapping[str, str], read_file: Callable[[Path], bytes]) -> Settings:
    """Read the settings, variables winning over the file; raise the first mistake, always the same one."""
    table = {} if path is None else _table(path, read_file)
    _refuse_unknown_keys(table, path)
    _refuse_unknown_variables(env)
    values: dict[str, Any] = {}
    sources: dict[str, SettingSource] = {}
    for key, kind in KINDS.items():
        section, _, name = key.partition(".")
        if name in table.get(section, ()):
            if kind.secret:
                hint = f"Set {variable(key)}, or name a file that holds it with {key}_file."
                raise SettingRefused(f"{key} ({path})", "a secret may not stand in this file", hint)
            values[key], sources[key] = _parsed(key, kind, table[section][name], path), "file"
        if (text := env.get(variable(key))) is not None:
            values[key] = _parsed(key, kind, kind.of_text(text), variable(key))
            sources[key] = "environment"
    if (pod := env.get(POD_VARIABLE)) and "replica.name" not in values:
        values["replica.name"] = _parsed("replica.name", KINDS["replica.name"], pod, POD_VARIABLE)
        sources["replica.name"] = "environment"
    for key in [key for key, kind in KINDS.items() if kind.secret and f"{key}_file" in values]:
        if key in values:
            raise SettingRefused(key, f"both {variable(key)} and {key}_file are given", "Keep one of them.")
        file = values[f"{key}_file"]
        text = _text_of(f"{key}_file", file, read_file).rstrip("\r\n")
        values[key], sources[key] = _parsed(key, KINDS[key], text, file), "secret file"
    sections: dict[str, Any] = {
        name: cls(**{f.name: values[key] for f in fields(cls) if (key := f"{name}.{f.name}") in values})
        for name, cls in SECTIONS.items()
    }
    return Settings(**sections, provenance=tuple(sources.items()))


def _parsed(key: str, kind: SettingKind, raw: object, origin: object) -> object:
    try:
        return kind.parse(raw)
    except ValueError as problem:
        shown = MASK if kind.secret else f"{raw!r:.60}"
        sentence = str(problem) or f"expected {kind.expected}, but got {shown}"
        raise SettingRefused(f"{key} ({origin})", sentence) from None


def _text_of(name: str, path: Path, read_file: Callable[[Path], bytes]) -> str:
    try:
        return read_file(path).decode()
    except OSError as error:
        hint = "Check the path, and that this user may read the file."
        raise SettingRefused(name, f"cannot read {path}: {error.strerror or error}", hint) from None
    except UnicodeDecodeError:
        raise SettingRefused(name, f"{path} is not UTF-8 text") from None


def _table(path: Path, read_file: Callable[[Path], bytes]) -> dict[str, Any]:
    text = _text_of("configuration file", path, read_file)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).removesuffix(")").rpartition(" (at ")
        if not place.startswith("line "):  # "end of document"
            place = f"line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))}"
        raise SettingRefused(f"{path}, {place}", what, 'Write text in quotes: key = "value".') from None


def _refuse_unknown_keys(table: Mapping[str, object], path: Path | None) -> None:
    for section, keys in table.items():
        if section not in SECTIONS:
            raise SettingRefused(f"{section} ({path})", "there is no such section", _meant(section, SECTIONS))
        if not isinstance(keys, dict):  # not quoted: it may be the database's address, password and all
            raise SettingRefused(f"{section} ({path})", f"expected a section, such as [{section}]")
        for name in keys:
            if (key := f"{section}.{name}") not in KINDS:
                raise SettingRefused(f"{key} ({path})", "there is no such setting", _meant(key, KINDS))


# Kubernetes sets these in every pod next to a Service called holdfast or holdfast-…: they are no settings.
SERVICE_LINK: Final = re.compile(
    r"HOLDFAST_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?=|=(tcp|udp|sctp)://))"
)


def _refuse_unknown_variables(env: Mapping[str, str]) -> None:
    others = (CONFIG_VARIABLE, CONTEXT_VARIABLE, SERVER_VARIABLE, TOKEN_VARIABLE, *PKI_VARIABLES)
    known = sorted([*others, *map(variable, KINDS)])
    for name in sorted(name for name in env if name.startswith("HOLDFAST_")):
        if name not in known and not SERVICE_LINK.match(f"{name}={env[name]}"):
            raise SettingRefused(name, "there is no such setting", _meant(name, known))


def _meant(name: str, known: Iterable[str]) -> str:
    """Suggest the same key in its right section, or else the nearest name (their common prefix aside)."""
    tails = {each.removeprefix("HOLDFAST_"): each for each in known}
    near = get_close_matches(name.removeprefix("HOLDFAST_"), tails, n=1)
    moved = [key for key in KINDS if key.partition(".")[2] == name.rpartition(".")[2]]
    close = moved or [tails[tail] for tail in near]
    return f"Did you mean {close[0]}?" if close else "'holdfast config show' lists every setting."


# ── Showing ───────────────────────────────────────────────────────────────────────────────────────────────


ShownSetting = str | int | list[str] | None


@dataclass(frozen=True, slots=True)
class Described:
    """One setting as a person may see it: a secret's value is already masked."""

    key: str
    variable: str
    value: ShownSetting
    default: ShownSetting
    source: SettingSource
    secret: bool
    expected: str
    doc: str


def describe(settings: Settings) -> list[Described]:
    """Say for every key its value in force, where the value came from and what the key means."""

    def one(key: str, kind: SettingKind) -> Described:
        value, default = (_shown(key, attrgetter(key)(each), settings) for each in (settings, DEFAULTS))
        source, doc = sources.get(key, "default"), FIELDS[key].metadata["doc"]
        return Described(key, variable(key), value, default, source, kind.secret, kind.expected, doc)

    sources: dict[str, SettingSource] = dict(settings.provenance)
    return [one(key, kind) for key, kind in KINDS.items()]


def _shown(key: str, value: Any, settings: Settings) -> ShownSetting:
    match key, value:
        case "store.url", Secret() if not value:
            return f"sqlite:///{settings.store.data_dir / SQLITE_NAME}"
        case "keys.file", None:
            return str(settings.store.data_dir / KEY_NAME)
        case _, Secret():
            return MASK
        case _, timedelta():
            return brief(value)
        case _, tuple():
            return list(value)
        case _:
            return str(value) if isinstance(value, Path) else value
