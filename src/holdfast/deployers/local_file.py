"""The file of a host that says what deployments may do there: folders, and programs by their names.

    folders = ["/etc/holdfast/live"]
    allow = ["nginx"]                     # programs of well-known daemons
    sockets = ["/run/haproxy/admin.sock"]

    [programs.app-reload]
    argv = ["/usr/bin/systemctl", "reload", "app"]
    timeout_s = 30

    [programs.fritzbox]
    acme_sh = "/usr/share/acme.sh/deploy/fritzbox.sh"   # a deploy script of acme.sh, in place of argv
    env = { DEPLOY_FRITZBOX_URL = "https://fritz.box" }

    [token_files]                         # with the only address that each token may be sent to
    "/var/run/secrets/kubernetes.io/serviceaccount/token" = "https://kubernetes.default.svc"

A person who may change a target over the API chooses among these, and can add nothing to them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.deployers.kind import LocalRules, Program

PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "apache-test": ("/usr/sbin/apachectl", "configtest"),
    "apache-reload": ("/usr/sbin/apachectl", "graceful"),
    "dovecot-test": ("/usr/bin/doveconf", "-n"),
    "dovecot-reload": ("/usr/bin/doveadm", "reload"),
    "haproxy-test": ("/usr/sbin/haproxy", "-c", "-f", "/etc/haproxy/haproxy.cfg"),
    "haproxy-reload": ("/usr/bin/systemctl", "reload", "haproxy"),
    "mariadb-reload": ("/usr/bin/mariadb", "-e", "FLUSH SSL"),
    "nginx-test": ("/usr/sbin/nginx", "-t"),
    "nginx-reload": ("/usr/sbin/nginx", "-s", "reload"),
    "postfix-test": ("/usr/sbin/postfix", "check"),
    "postfix-reload": ("/usr/sbin/postfix", "reload"),
    "postgresql-reload": ("/usr/bin/systemctl", "reload", "postgresql"),
    "slapd-test": ("/usr/sbin/slaptest", "-Q"),
    "slapd-reload": ("/usr/bin/systemctl", "restart", "slapd"),
}
_PROGRAM: Final = frozenset({"argv", "acme_sh", "timeout_s", "env"})
_ACME_SH: Final = Path(__file__).with_name("acme_sh.sh")
_KEYS: Final = frozenset({"folders", "allow", "programs", "sockets", "token_files"})


def rules_of(text: str) -> LocalRules:
    """What the file allows; ValueError says what is wrong with it."""
    return rules_from(tomllib.loads(text))


def rules_from(found: Mapping[str, Any]) -> LocalRules:
    """The same of what a file was read to."""
    if unknown := sorted(set(found) - _KEYS):
        raise ValueError(f"there is no key {unknown[0]!r:.60}; there are {', '.join(sorted(_KEYS))}")
    folders, sockets = (
        tuple(Path(_text(each, f"one of {key}")) for each in found.get(key, [])) for key in ("folders", "sockets")
    )
    tokens = {
        Path(path): _text(address, f"the address of {path}").rstrip("/")
        for path, address in found.get("token_files", {}).items()
    }
    if relative := [each for each in (*folders, *sockets, *tokens) if not each.is_absolute() or ".." in each.parts]:
        raise ValueError(f"{relative[0]} must be written from / on, without ..")
    named = {name: _program(name, each) for name, each in found.get("programs", {}).items()}
    programs = {**_allowed(found.get("allow", [])), **named}
    return LocalRules(folders=folders, sockets=sockets, programs=programs, token_files=tokens)


def _allowed(daemons: list[Any]) -> dict[str, Program]:
    known = {name.partition("-")[0] for name in PROGRAMS}
    if unknown := [each for each in daemons if each not in known]:
        raise ValueError(f"allow knows no daemon {unknown[0]!r:.60}; it knows {', '.join(sorted(known))}")
    return {name: Program(argv=argv) for name, argv in PROGRAMS.items() if name.partition("-")[0] in daemons}


def _program(name: str, table: Any) -> Program:
    if not isinstance(table, dict) or set(table) - _PROGRAM or len({"argv", "acme_sh"} & set(table)) != 1:
        raise ValueError(f"programs.{name} is a table with argv or acme_sh, and perhaps timeout_s and env")
    script = [table["acme_sh"]] if "acme_sh" in table else []
    given = tuple(_text(each, f"each part of the argv of {name}") for each in script or table["argv"])
    if not given or not given[0].startswith("/"):
        raise ValueError(f"the program of {name} is written from / on: {given[:1]!r:.60}")
    argv = ("/bin/sh", str(_ACME_SH), *given) if script else given
    env = {key: _text(value, f"{key} in the env of {name}") for key, value in table.get("env", {}).items()}
    return Program(argv=argv, timeout=float(table.get("timeout_s", 60)), env=env)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{what} is text")
    return value
