"""What the witness writes down can be read again, and a damaged line costs no other."""

from datetime import UTC, datetime

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.own_ca.ca import IssuedCertificate, RootCrl
from holdfast.core.witness import (
    Head,
    PublishedCrl,
    PublishedRootCrl,
    RevokedSerial,
    facts,
    head_line,
    line,
    newest_head,
)

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
ISSUED = IssuedCertificate(
    id="cert_1", ca="ca1", serial="0abc", order="order_1", account="acct_1", profile="default",
    identifiers=(Identifier("dns", "a.example"), Identifier("ip", "192.0.2.1")), der=b"\x30\x00\n", spki_sha256="ff",
    not_before=AT, not_after=AT, shard=None, issued_at=AT,
)  # fmt: skip
REVOKED = RevokedSerial(ca="ca1", serial="0abc", reason=1, at=AT, actor="human:alice")
CRL = PublishedCrl(ca="ca1", shard=0, number=7)
ROOT = PublishedRootCrl(crl=RootCrl(root="ab", number=3, this_update=AT, next_update=AT, der=b"\x30"))
ALL = (ISSUED, REVOKED, CRL, ROOT)


def head(seq: int) -> Head:
    return Head(installation="inst_1", generation=1, epoch=1, seq=seq, hash="aa", at=AT)


def test_every_fact_is_read_as_it_was_written():
    assert facts(b"".join(map(line, ALL))) == (list(ALL), 0)


def test_a_cut_or_altered_line_is_counted_and_the_others_are_read():
    whole = line(REVOKED)
    content = whole + line(ISSUED)[:40] + b"\n" + line(CRL).replace(b'"number":7', b'"number":8') + line(ROOT)
    assert facts(content) == ([REVOKED, ROOT], 2)


def test_the_later_head_counts_and_a_cut_one_does_not():
    older, newer = head_line(head(8), 1), head_line(head(9), 2)
    assert newest_head([newer, older]) == (head(9), 2)
    assert newest_head([newer[:-9], older]) == (head(8), 1)
    assert newest_head([b"", b""]) == (None, 0)
