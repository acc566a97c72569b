"""What a target that keeps texts beside a certificate says about the one in place, and who may overwrite that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.reasons import Reason
from holdfast.deployers.base import Bundle, refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The bundle in place, by the texts that we left beside it."""

    certificate: str
    number: int

    @classmethod
    def read(cls, texts: Mapping[str, object]) -> Held | None:
        """None: what is there is not ours."""
        name, number = texts.get("certificate"), str(texts.get("number", ""))
        if not isinstance(name, str) or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        return cls(certificate=name, number=int(number))

    def yields(self, target: str, bundle: Bundle, instead_of: Bundle | None = None) -> None:
        """Refused, unless the bundle may be put here; `instead_of`: in a rollback, the one it may overwrite."""
        if self.certificate != bundle.certificate:
            why = f"its place holds the certificate {self.certificate!r:.100}; one place holds one certificate"
            raise refused(f"Target {target}: {why}.", Reason.TARGET_TAKEN)
        highest = bundle.number if instead_of is None else instead_of.number
        if self.number > highest:
            why = f"it holds number {self.number} of {bundle.certificate}, which is newer than {highest}"
            raise refused(f"Target {target}: {why}.", Reason.TARGET_HAS_NEWER)


def texts_of(bundle: Bundle) -> dict[str, str]:
    """What is left beside a bundle."""
    return {
        "certificate": bundle.certificate,
        "serial": bundle.serial,
        "not_after": bundle.not_after.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "number": str(bundle.number),
    }


def nothing_before(target: str, name: str) -> Exception:
    return refused(f"Target {target}: {name} keeps no certificate from before, and none of ours is known.")
