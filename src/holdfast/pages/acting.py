"""Acts: every button is a form that names an operation, and is carried out as that operation and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from holdfast.operations.operation import Operation, declared
from holdfast.pages import forms
from holdfast.pages.visit import Visit

BACK: Final = "_back"  # where a form without script leads to
VERSION: Final = "_version"


async def act(visit: Visit) -> Response:
    operation = _named(visit.path("operation"))
    given = await visit.form()
    own = dict(each for each in given if each[0].startswith("_"))
    fields = forms.read(operation, [each for each in given if not each[0].startswith("_")])
    version = int(own[VERSION]) if own.get(VERSION, "").isdigit() else None
    result = await visit.call(operation.name, version=version, dry_run="_dry_run" in own, **fields)
    said = done(operation, fields, result)
    if "application/json" in visit.request.headers.get("accept", ""):
        return JSONResponse({"says": said, "result": plain(result), "undo": undo(operation.name, fields)})
    return visit.back(own.get(BACK, "/"), said)


def _named(name: str) -> Operation:
    found = next((each for each in declared() if each.name == name), None)
    if found is None or found.method == "GET":
        raise HTTPException(404)
    return found


# What takes an act back for good, and the fields that it needs of the act.
_UNDO: Final = {
    "attention.snooze": ("attention.wake", ("what", "name")),
    "certificates.pause": ("certificates.resume", ("ref",)),
    "certificates.resume": ("certificates.pause", ("ref",)),
    "issuers.pause": ("issuers.resume", ("name",)),
    "issuers.resume": ("issuers.pause", ("name",)),
    "targets.pause": ("targets.resume", ("name",)),
    "targets.resume": ("targets.pause", ("name",)),
    "channels.pause": ("channels.resume", ("name",)),
    "channels.resume": ("channels.pause", ("name",)),
    "cluster.drain": ("cluster.resume", ("replica",)),
}


def undo(name: str, fields: Mapping[str, object]) -> dict[str, object] | None:
    """The operation that takes this one back, with its fields."""
    back, wanted = _UNDO.get(name, ("", ()))
    return {"operation": back, "fields": {each: fields.get(each, "") for each in wanted}} if back else None


_DONE: Final = {
    "attention.snooze": "It is snoozed. Only your list is changed.",
    "attention.wake": "It is on your list again.",
    "certificates.renew": "The renewal of {ref} has begun.",
    "certificates.pause": "{ref} is paused: it is not renewed until you resume it.",
    "certificates.resume": "{ref} is renewed again.",
    "certificates.archive": "{ref} is archived.",
    "certificates.revoke": "The revocation of {ref} is asked for; a new version is obtained.",
    "certificates.cancel": "The issuance of {ref} is cancelled.",
    "certificates.deploy": "{ref} is deployed; the page of its targets shows how it goes.",
    "certificates.rollback": "{ref} goes back to the version before.",
    "endpoints.check": "The endpoint is looked at now.",
    "targets.pause": "{name} is paused: nothing is deployed there.",
    "targets.resume": "{name} is deployed to again.",
    "certificates.change": "{ref} is changed.",
    "certificates.request": "{name} is requested.",
    "notifications.requeue": "The notification is on its way again.",
    "notifications.resolve": "The notification is resolved.",
    "notifications.requeue-many": "{number} notifications are on their way again.",
    "notifications.resolve-many": "{number} notifications are resolved.",
    "approvals.approve": "Approved: the issuance goes on.",
    "approvals.reject": "Rejected.",
    "issuers.pause": "{name} is paused: nothing new is ordered there.",
    "issuers.resume": "{name} takes orders again.",
    "channels.pause": "{name} is paused: its notifications wait.",
    "channels.resume": "{name} delivers again.",
    "jobs.retry": "The job runs now.",
    "jobs.cancel": "The job is cancelled.",
    "cluster.drain": "{replica} takes no more work.",
    "cluster.resume": "{replica} takes work again.",
    "tokens.revoke": "The token is revoked.",
    "eab.revoke": "The EAB key is revoked.",
    "pauses.delete": "{name} may be ordered again.",
}


def done(operation: Operation, fields: dict[str, object], result: object) -> str:
    """The sentence after success, with fields of the input and of the result."""
    known = {**plain(result), **fields} if isinstance(plain(result), dict) else dict(fields)
    if "detail" in known and "ok" in known:  # the test of a remote
        return str(known["detail"])
    text = _DONE.get(operation.name) or (operation.done if "holdfast" not in operation.done else "") or "Done."
    wanted = [name for _, name, _, _ in Formatter().parse(text) if name]
    return text.format(**known) if all(each in known for each in wanted) else "Done."


def plain(result: Any) -> Any:
    return result.model_dump(mode="json") if hasattr(result, "model_dump") else result


PAGES: Final = [("/do/{operation}", act, "POST")]
