"""A value that must not be seen: it can be handed on, compared, and revealed on purpose; nothing else."""

from __future__ import annotations

import hmac
from typing import Any, AnyStr, Final, Generic, NoReturn, Self, final

MASK: Final = "***"


@final
class Secret(Generic[AnyStr]):
    """Wraps text or bytes; `reveal()` is the only way out. Having only equality, it has no hash."""

    __slots__ = ("_value",)

    def __new__(cls, value: AnyStr) -> Self:
        # In __new__, so that a second call of __init__ cannot change a secret that is already shared.
        if not isinstance(value, str | bytes):
            raise TypeError("a secret is text or bytes")
        self = super().__new__(cls)
        _VALUE.__set__(self, value)
        return self

    def reveal(self) -> AnyStr:
        """Return the value itself; search for this word to find every place that sees one."""
        value: AnyStr = _VALUE.__get__(self, Secret)
        return value

    def __bool__(self) -> bool:
        """Say whether there is anything in it: without this an empty one would count as given."""
        return bool(self.reveal())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = self.reveal(), other.reveal()
        return type(mine) is type(theirs) and hmac.compare_digest(_as_bytes(mine), _as_bytes(theirs))

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK  # whatever the spec: padding it would be harmless, failing in a log line would not

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self  # it cannot change, so a copy may share it and never holds it in the open

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("Secret cannot be subclassed")


def _as_bytes(value: str | bytes) -> bytes:
    # Text from the environment may hold lone surrogates (PEP 383), and compare_digest takes only ASCII text.
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


# The slot's accessor is taken off the class, so that nothing which walks attributes (an object inspector, a
# serializer reading __slots__, getattr) can reach the value: only this module still holds the accessor.
_VALUE: Final[Any] = Secret.__dict__["_value"]
del Secret._value  # type: ignore[attr-defined]
