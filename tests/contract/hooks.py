"""What schemathesis is told about us: an Idempotency-Key is somebody's for a day, so each request brings its own."""

from itertools import count
from typing import Any

import schemathesis

_NUMBERS = count()
_KEY = "idempotency-key"


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    given = (case.headers or {}).get(_KEY)
    if isinstance(given, str) and given.isascii() and given.isprintable() and 0 < len(given) < 256:
        case.headers[_KEY] = f"{given[:-8]}{next(_NUMBERS):08}"  # a long one stays as long as it was
