"""Where the certificates of the demo are deployed and seen: two proxies, one of which does not serve all of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.certificate import Certificate, CertificateState
from holdfast.core.deployment import Deployment, DeploymentState
from holdfast.core.endpoint import Endpoint
from holdfast.core.endpoint_watch import LastLook, WatchedEndpoint
from holdfast.core.reasons import MEANINGS, Reason
from holdfast.core.target import TargetRow

TARGETS: Final = ("edge-1", "edge-2")
_REFUSED: Final = "edge-2.shop.example: the new configuration was refused: bind [::]:443: no such certificate"


def tell(now: datetime, rows: list[Any]) -> None:
    """Add the targets, and a deployment and an endpoint for each certificate that has them."""
    began = now - timedelta(days=300)
    rows += [TargetRow(name=each, kind="haproxy", host=f"{each}.shop.example", created_at=began) for each in TARGETS]
    placed = sorted(
        (each for each in rows if isinstance(each, Certificate) and each.wanted.targets), key=lambda each: each.name
    )
    for number, each in enumerate(placed):
        rows += [_deployed(now, each, target, fails=number == 3 and target == "edge-2") for target in TARGETS]
        if number % 4 == 0 and each.state is CertificateState.ACTIVE:
            rows.append(_watched(now, each, Reason.ENDPOINT_DRIFT if number == 8 else Reason.OK))


def _deployed(now: datetime, about: Certificate, target: str, *, fails: bool) -> Deployment:
    at = now - timedelta(days=6)
    failed: dict[str, Any] = {
        "state": DeploymentState.FAILED, "failures": 3, "reason": Reason.DEPLOY_FAILED.value, "error": _REFUSED,
        "next_at": now + timedelta(minutes=52), "changed_at": now - timedelta(minutes=8),
    }  # fmt: skip
    served: dict[str, Any] = {"state": DeploymentState.SERVED, "changed_at": at, "served_at": at}
    return Deployment(
        id=f"deployment_{about.id.removeprefix('certificate_')}_{target}",
        certificate=about.id,
        certificate_version=about.current_version or "",
        target=target,
        number=1,
        created_at=at,
        **(failed if fails else served),
    )


def _watched(now: datetime, about: Certificate, reason: Reason) -> WatchedEndpoint:
    host = about.name.replace("*", "www")
    since = now - timedelta(hours=5)
    sentence = MEANINGS[reason].sentence
    return WatchedEndpoint(
        id=f"endpoint_{about.id.removeprefix('certificate_')}",
        name=f"{host}:443",
        place=Endpoint(host=host, port=443),
        certificate=about.id,
        owner=about.wanted.owner,
        created_at=now - timedelta(days=90),
        last=LastLook(at=now - timedelta(minutes=4), reason=reason, since=since, times=30, sentence=sentence),
    )
