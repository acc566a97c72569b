"""The ACME issuer against Caddy's ACME server, which always looks at port 80 and asks DNS at port 53."""

from pathlib import Path

from tests.support.caddy import ordered

from holdfast.core.reasons import Reason


def test_names_wildcards_and_addresses_are_issued_by_caddy(tmp_path: Path) -> None:
    found = ordered(tmp_path)
    assert found["plain"] == [["a.holdfast.test", "b.holdfast.test"], []]
    assert found["renewed"] == found["plain"], "the same names again, as a renewal asks for them"
    assert found["anew"], "with another key, and not the same order once more"
    assert found["wildcard"] == [["*.holdfast.test"], []]
    assert found["address"] == [[], ["127.0.0.1"]]
    reason, why = found["failed"]
    assert reason == Reason.VALIDATION_FAILED
    assert "missing.holdfast.test" in why
    assert found["window"] == "None"  # it offers no renewal information
    assert "knows our account" in found["probe"]
