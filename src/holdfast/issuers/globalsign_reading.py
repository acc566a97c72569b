"""What GlobalSign Atlas answers: two words, refusals in a form of its own, and serials in several spellings."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.core.reasons import Reason
from holdfast.issuers.reading import words
from holdfast.issuers.rest import Reply
from holdfast.issuers.triage import Dialect, Meaning, Problem, Verdict

SERIAL: Final = re.compile(r"[0-9A-Fa-f]{1,64}")


def _problem(value: Any) -> Problem | None:
    """Not RFC 7807: {description, id, errors}. Its support asks for the id."""
    if not isinstance(value, dict) or not isinstance(value.get("description"), str):
        return None
    errors = value.get("errors")
    kinds = [*errors.items()][:5] if isinstance(errors, dict) else []
    told = "; ".join(f"{words(name, 60)}: {words(detail, 160)}" for name, detail in kinds)
    number = f" (id {words(value['id'], 60)})" if value.get("id") else ""
    said = words(value["description"])
    return Problem(
        tuple(words(name, 60) for name, _ in kinds), f"{said}: {told}{number}" if told else f"{said}{number}"
    )


DIALECT: Final = Dialect(
    ca="GlobalSign",
    words={"issued": Meaning(Verdict.ISSUED), "revoked": Meaning(Verdict.FAILED, again=True)},
    statuses={
        402: Meaning(
            Verdict.TRANSIENT,
            "The account has used up its quota: nothing can be ordered before GlobalSign raises it.",
            Reason.CA_RATE_LIMITED,
        )
    },
    problem=_problem,
    blame={401: "api_key", 403: "api_key"},
)
_LOGIN: Final = Meaning(
    Verdict.FAILED, "Check the credentials api_key and api_secret, and the client certificate.", Reason.ACCOUNT_REFUSED
)
LOGIN: Final = Dialect(
    ca="GlobalSign", words={}, statuses=dict.fromkeys((400, 401, 403, 422), _LOGIN), problem=_problem
)  # fmt: skip


def ref_of(serial: str, now: datetime) -> dict[str, str]:
    return {"certificate": serial, "placed_at": now.astimezone(UTC).isoformat()}


def spellings(serial: object) -> list[str]:
    """Some of its documents have decimal numbers there, and others hexadecimal ones."""
    text = str(serial) if isinstance(serial, str | int) else ""
    if not SERIAL.fullmatch(text):
        return []
    return [text, f"{int(text):X}"] if text.isdigit() else [text]


def description(reply: Reply) -> str:
    return words(reply.json_object().get("description") or "") if reply.response.body else ""
