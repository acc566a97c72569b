"""How to switch off what renewed the certificates until now, so that two programs do not renew them both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CERTBOT: Final = (
    "systemctl disable --now certbot.timer        # Debian, Ubuntu, Fedora: the packaged timer",
    "systemctl disable --now snap.certbot.renew.timer   # if certbot came as a snap",
    "rm /etc/cron.d/certbot                       # where there is no systemd; look into 'crontab -l' of root, too",
)
_ACME_SH: Final = (
    "acme.sh --uninstall-cronjob                  # as the user who runs acme.sh: removes the line 'acme.sh --cron'",
    "crontab -l | grep acme.sh                    # must print nothing afterwards",
    "systemctl list-timers | grep -i acme         # if somebody made it a timer: systemctl disable --now NAME",
)
_LEGO: Final = (
    "crontab -l | grep 'lego.*\\(renew\\|run\\)'     # lego has no timer of its own: remove the line that calls it",
    "systemctl list-timers | grep -i lego         # or the timer: systemctl disable --now NAME",
)
_PEM: Final = ("# Whatever renewed these files until now: its timer, its cron line, or somebody's calendar.",)
STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "certbot": _CERTBOT,
    "acme.sh": _ACME_SH,
    "lego": _LEGO,
    "pem": _PEM,
}
