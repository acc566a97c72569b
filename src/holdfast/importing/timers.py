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
# What has to be so before that, or a server goes on with the certificate that it has until this ends.
MEANWHILE: Final = (
    "Renewed files are not written yet to where your servers read them: installing them is not built.",
    "A server that reads the old client's files keeps its present certificate, until that ends. Until then, either",
    "  leave the old timer on: both renew the same names then, and each renewal counts at the CA; or",
    "  let cron fetch what is new, into a folder that the server reads, and reload it. For example, every day:",
    "    holdfast fetch NAME --form pem --to /etc/nginx/tls/NAME && nginx -s reload    # key.pem and chain.pem",
)
STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "certbot": _CERTBOT,
    "acme.sh": _ACME_SH,
    "lego": _LEGO,
    "pem": _PEM,
}
