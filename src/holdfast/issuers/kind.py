"""What a kind of CA is to whoever makes issuers of stored rows: the settings it takes, checked, and how one is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509

from holdfast.issuers import reading, rest
from holdfast.issuers.base import Issuer
from holdfast.issuers.rest import Headers, Site
from holdfast.ports import Clock, Files, Identity, Transport
from holdfast.secret import Secret

# Those that take the name of an order from its CSR: there it must have a common name, whatever the RFCs say by now.
WANT_COMMON_NAME: Final = frozenset({"sectigo"})
COMMON: Final = frozenset({"approval_required", "limits", "poll_max_wait_seconds", "roots", "request_timeout_seconds"})
MAX_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an issuer is made of."""

    name: str  # of its row
    settings: Mapping[str, Any]
    credentials: Mapping[str, Secret[str]]  # by purpose
    transport: Transport
    clock: Clock
    files: Files
    memory: MutableMapping[str, Any]  # of this CA in this process, such as a session; losing it costs a request


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`check` raises ValueError, which names the setting; `make` may assume that it was passed."""

    check: Callable[[Mapping[str, Any]], object]
    make: Callable[[Parts], Issuer]
    needs: tuple[str, ...] = ()  # credentials, by purpose
    may: tuple[str, ...] = ()  # credentials that it can do without


def check(kind: Kind, settings: Mapping[str, Any], credentials: Collection[str]) -> None:
    """Whether an issuer can be made of these; ValueError names what is missing, unknown or malformed."""
    in_the_open(settings, (*kind.needs, *kind.may))
    kind.check(settings)
    missing = [each for each in kind.needs if each not in credentials]
    if missing:
        raise ValueError(f"the credential {missing[0]} is missing")
    known = (*kind.needs, *kind.may)
    unknown = sorted(set(credentials) - set(known))
    if unknown:
        raise ValueError(f"there is no credential {unknown[0]!r:.40}; there are {', '.join(known) or 'none'}")


def in_the_open(settings: Mapping[str, Any], secret: Collection[str]) -> None:
    """A credential among the settings would be shown to whoever may see the CA."""
    found = sorted(set(settings) & set(secret))
    if found:
        name = found[0]
        raise ValueError(
            f"{name} is a credential, and not a setting: give it by --credential-stdin {name}, or --credential-file "
            f"{name}=FILE; if you just typed it, others may have seen it"
        )


class Options:
    """Settings of one row, read one by one; each complaint begins with the setting's name."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._known = set(COMMON)

    def _get(self, name: str) -> Any:
        self._known.add(name)
        found = self._settings.get(name)
        return None if found == "" else found

    def text(self, name: str, default: str | None = None, *, like: str = r"[^\x00-\x1f\x7f]{1,400}") -> str:
        found = self._get(name)
        if found is None:
            if default is None:
                raise ValueError(f"{name} is missing")
            return default
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)  # 4711 is a login, too, though JSON has it for a number
        if not isinstance(found, str) or not re.fullmatch(like, found):
            raise ValueError(f"{name} is not well-formed: {reading.words(found, 60)!r}")
        return found

    def texts(self, name: str, *, like: str, example: str) -> tuple[str, ...]:
        """A list of texts; a text alone is refused, or its letters would be taken for them."""
        found = self._get(name)
        good = isinstance(found, list | tuple) and all(isinstance(e, str) and re.fullmatch(like, e) for e in found)
        if found is not None and not good:
            raise ValueError(f"{name} must be a list, such as {example}")
        return tuple(found or ())

    def number(self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**53) -> int | None:
        found = self._get(name)
        if found is None:
            return default
        if isinstance(found, str) and re.fullmatch("[0-9]{1,16}", found):
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise ValueError(f"{name} must be a whole number from {least} to {most}")
        return found

    def needed(self, name: str) -> int:
        found = self.number(name)
        if found is None:
            raise ValueError(f"{name} is missing")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._get(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise ValueError(f"{name} must be true or false")
        return found

    def choice(self, name: str, offered: tuple[str, ...], default: str) -> str:
        found = self._get(name)
        if found is None:
            return default
        if found not in offered:
            raise ValueError(f"{name} must be one of {', '.join(offered)}")
        return str(found)

    def mapping(self, name: str) -> dict[str, str]:
        """Such as custom fields: text by text."""
        found = self._get(name)
        if found is None:
            return {}
        if not isinstance(found, Mapping) or not all(isinstance(value, str | int) for value in found.values()):
            raise ValueError(f"{name} must be a table of texts")
        return {str(key): str(value) for key, value in found.items()}

    def address(self, name: str = "base_url", default: str | None = None) -> str:
        found = self._get(name)
        if found is None and default is None:
            raise ValueError(f"{name} is missing")
        return rest.checked_base(default if found is None else found, name)

    def site(
        self,
        base: str,
        headers: Headers,
        identity: Callable[[], Identity] | None = None,
        hidden: tuple[Secret[str], ...] = (),
    ) -> Site:
        """Where the CA is, with the settings that all kinds have."""
        return Site(
            base=base, headers=headers, roots=self.roots(), identity=identity, deadline_for=self.request_timeout_s(),
            hidden=hidden,
        )  # fmt: skip

    def roots(self) -> bytes:
        """PEM of who vouches for the CA's own TLS certificate; empty: the system's."""
        found = self.text("roots", "", like=r"[\s\S]{1,400000}").encode()
        if b"PRIVATE KEY" in found:
            raise ValueError("roots has a private key in it: replace that key")
        try:
            if found:
                x509.load_pem_x509_certificates(found)
        except ValueError:
            raise ValueError("roots is not a list of certificates in PEM") from None
        return found

    def request_timeout_s(self) -> float:
        found = self._get("request_timeout_seconds")
        if found is None:
            return 30.0
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0.1 <= found <= MAX_TIMEOUT_S:
            raise ValueError(f"request_timeout_seconds must be from 0.1 to {MAX_TIMEOUT_S:g}")
        return float(found)

    def done(self) -> None:
        """No setting is left that nobody asked for: a misspelt one would be ignored in silence."""
        self.roots()
        self.request_timeout_s()
        unknown = sorted(set(self._settings) - self._known)
        if unknown:
            raise ValueError(f"there is no setting {unknown[0]!r:.40}; there are {', '.join(sorted(self._known))}")
