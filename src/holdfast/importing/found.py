"""Values for the certificates and accounts found in another client's folder, and how to switch that client off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAccount:
    """An account at a CA, with its key. Without an address, the CA finds it again by the key (RFC 8555 §7.3.1)."""

    file: str  # where its key was
    directory: str
    url: str | None
    key: Secret[bytes]  # PKCS#8, PEM
    contacts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCertificate:
    """A certificate whose key, names, chain and dates were seen to belong together."""

    file: str  # where its chain was
    name: str
    names: tuple[str, ...]  # DNS names, then addresses, as the certificate has them
    chain: bytes  # PEM, leaf first
    key: Secret[bytes]  # PKCS#8, PEM
    key_kind: str
    serial: str
    not_before: datetime
    not_after: datetime
    directory: str | None = None  # of the CA that it came from; None: the files do not say
    account: FoundAccount | None = None
    reuse_key: bool = False
    preferred_chain: str | None = None
    profile: str | None = None
    paused: bool = False  # the other client is set not to renew it
    renew_before: timedelta | None = None  # before it expires, if the other client is set so
    proved_by: str = ""  # how the other client proved its names
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProblem:
    """Something that is not taken over: which file, why, and what to do about it."""

    file: str
    problem: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInFolder:
    certificates: tuple[FoundCertificate, ...] = ()
    problems: tuple[ImportProblem, ...] = ()
    notes: tuple[str, ...] = ()


class ImportTrouble(Exception):
    """Ends the reading of one certificate; the others go on."""

    def __init__(self, file: str, problem: str, next_step: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.problem = ImportProblem(file=file, problem=problem, next_step=next_step)


# ── Switching the other client off ──
# How to switch off the client that renewed the certificates until now, so that only one program renews them.


_CERTBOT: Final = (
    "systemctl disable --now certbot.timer        # Debian, Ubuntu, Fedora: the packaged timer",
    "systemctl disable --now snap.certbot.renew.timer   # if certbot came as a snap",
    "rm /etc/cron.d/certbot                       # where there is no systemd; look into 'crontab -l' of root, too",
)
_ACME_SH: Final = (
    "acme.sh --uninstall-cronjob                  # as the user who runs acme.sh: removes the line 'acme.sh --cron'",
    "crontab -l | grep acme.sh                    # must print nothing afterwards",
    "systemctl list-timers | grep -i acme         # if it is a timer: systemctl disable --now NAME",
)
_LEGO: Final = (
    "crontab -l | grep 'lego.*\\(renew\\|run\\)'     # lego has no timer of its own: remove the line that calls it",
    "systemctl list-timers | grep -i lego         # or the timer: systemctl disable --now NAME",
)
_PEM: Final = ("# Switch off the timer, the cron line or the calendar entry that renewed these files until now.",)
# Shown before these steps: without them a server keeps the certificate that it has until that expires.
MEANWHILE: Final = (
    "A server that reads the old client's files keeps its present certificate until that expires. So either",
    "  let Holdfast deploy renewed certificates to the server: holdfast target --help; or",
    "  leave the old timer on: both renew the same names then, and each renewal counts at the CA; or",
    "  let cron fetch renewed certificates into a folder that the server reads, and reload it. For example, every day:",
    "    holdfast fetch NAME --form pem --to /etc/nginx/tls/NAME && nginx -s reload    # key.pem and chain.pem",
)
STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "certbot": _CERTBOT,
    "acme.sh": _ACME_SH,
    "lego": _LEGO,
    "pem": _PEM,
}
