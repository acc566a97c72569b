"""What schemathesis is told about us: an Idempotency-Key is somebody's for a day, so each request brings its own."""

from itertools import count
from typing import Any

import schemathesis

_NUMBERS = count()
_KEY = "idempotency-key"


@schemathesis.hook
def map_headers(context: Any, headers: Any) -> Any:
    if headers and isinstance(headers.get(_KEY), str) and headers[_KEY].isascii() and headers[_KEY]:
        headers[_KEY] = f"{headers[_KEY][:-8]}{next(_NUMBERS):08}"  # a long one stays as long as it was
    return headers
