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
