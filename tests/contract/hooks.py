"""What schemathesis is told about us: an Idempotency-Key is somebody's for a day, so each request brings its own."""

from itertools import count
from typing import Any

import schemathesis

_NUMBERS = count()
_KEY = "idempotency-key"


@schemathesis.hook
def map_headers(context: Any, headers: Any) -> Any:
    if headers and isinstance(headers.get(_KEY), str) and headers[_KEY].isascii() and 0 < len(headers[_KEY]) < 240:
        headers[_KEY] = f"{headers[_KEY]}{next(_NUMBERS)}"
    return headers


@schemathesis.check
def what_is_valid_is_not_called_invalid(ctx: Any, response: Any, case: Any) -> None:
    """422 is for requests that the document forbids; and for repeated keys, which the phase of coverage sends."""
    if response.status_code != 422 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if (code := response.json().get("code")) != "idempotency-key-reused":
        raise AssertionError(f"the document allows this request, and it is refused as {code}")
