"""DNS messages: what is asked, what is understood, and that nothing else comes of any packet whatsoever."""

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rdtypes.ANY.CAA
import dns.rrset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.validators import wire
from holdfast.validators.wire import DnsAnswer, Malformed, RecordKind

NAME = "www.example.internal"


def a_response(kind: RecordKind, *rrsets: tuple[str, int, str, list[str]], name: str = NAME) -> bytes:
    """A packet by dnspython, with these records in its answer: (owner, ttl, type, values)."""
    query = dns.message.from_wire(wire.query(7, wire.question(name, kind)))
    response = dns.message.make_response(query)
    for owner, ttl, type_, values in rrsets:
        response.answer.append(dns.rrset.from_text_list(f"{owner}.", ttl, "IN", type_, values))
    return response.to_wire(max_size=65535)


def read(packet: bytes, kind: RecordKind, name: str = NAME) -> DnsAnswer:
    asked = wire.question(name, kind)
    assert wire.fits(packet, 7, asked)
    return wire.read(packet, asked)


# ── questions ──


@pytest.mark.parametrize("kind", list(RecordKind))
def test_a_query_is_what_another_library_reads_as_one(kind: RecordKind) -> None:
    query = dns.message.from_wire(wire.query(0xBEEF, wire.question("a.example-1.internal", kind)))
    [question] = query.question
    assert (query.id, query.opcode(), query.flags) == (0xBEEF, 0, dns.flags.RD)
    assert question.name == dns.name.from_text("a.example-1.internal.")
    assert (question.rdtype, question.rdclass) == (int(kind), dns.rdataclass.IN)
    assert (query.edns, query.payload) == (0, 1232)


@pytest.mark.parametrize("name", ["", ".", "a..b", "a.", ".a", f"{'a' * 64}.b", ".".join(["a" * 63] * 4), "bücher.de"])
def test_a_name_that_cannot_be_asked_for_is_refused(name: str) -> None:
    with pytest.raises(Malformed):
        wire.question(name, RecordKind.A)


def test_the_longest_name_can_be_asked_for() -> None:
    name = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert len(name) == 253
    assert (
        dns.message.from_wire(wire.query(1, wire.question(name, RecordKind.A))).question[0].name.to_text() == f"{name}."
    )


@given(st.binary(min_size=64, max_size=64))
def test_mixing_changes_the_case_of_letters_and_nothing_else(noise: bytes) -> None:
    asked = wire.question("abc-z0.example.internal", RecordKind.CAA)
    spelled = wire.mixed(asked, noise)
    assert spelled.lower() == asked
    assert spelled[-4:] == asked[-4:]


def test_mixing_uses_one_bit_for_each_letter() -> None:
    asked = wire.question("ab.c", RecordKind.A)
    assert wire.mixed(asked, b"\xff" * 20)[:6] == b"\x02AB\x01C\x00"
    assert wire.mixed(asked, b"\xfe" * 20) == asked


# ── which packets fit ──


def test_only_an_answer_to_this_very_question_fits() -> None:
    asked = wire.question(NAME, RecordKind.A)
    packet = a_response(RecordKind.A, (NAME, 60, "A", ["192.0.2.1"]))
    assert wire.fits(packet, 7, asked)
    assert not wire.fits(packet, 8, asked)
    assert not wire.fits(packet, 7, wire.question(NAME, RecordKind.AAAA))
    assert not wire.fits(packet, 7, wire.question("wwx.example.internal", RecordKind.A))
    assert not wire.fits(wire.query(7, asked), 7, asked)  # the query itself, sent back
    assert not wire.fits(packet[:4] + b"\0\0" + packet[6:], 7, asked)  # no question in it
    assert not wire.fits(packet[:2] + bytes([packet[2] | 0x28]) + packet[3:], 7, asked)  # another opcode
    assert not any(wire.fits(packet[:size], 7, asked) for size in range(12 + len(asked)))


def test_a_server_that_changes_the_case_fits_but_does_not_repeat() -> None:
    asked = wire.question(NAME, RecordKind.A)
    spelled = wire.mixed(asked, b"\x01" * 60)
    packet = a_response(RecordKind.A)
    assert wire.fits(packet, 7, spelled)
    assert not wire.repeats(packet, spelled)
    assert wire.repeats(packet, asked)


# ── what is read ──


def test_addresses_are_read() -> None:
    found = read(a_response(RecordKind.A, (NAME, 60, "A", ["192.0.2.1"]), (NAME, 60, "A", ["192.0.2.2"])), RecordKind.A)
    assert found == DnsAnswer(0, data=(b"\xc0\x00\x02\x01", b"\xc0\x00\x02\x02"), ttl=60)
    assert read(a_response(RecordKind.AAAA, (NAME, 9, "AAAA", ["2001:db8::1"])), RecordKind.AAAA).data[0][-1] == 1


def test_an_alias_is_followed_to_its_records_and_the_least_ttl_counts() -> None:
    packet = a_response(
        RecordKind.A,
        (NAME, 60, "CNAME", ["b.example."]),
        ("b.example", 5, "CNAME", ["C.Example."]),
        ("c.example", 60, "A", ["192.0.2.9"]),
        ("d.example", 60, "A", ["192.0.2.10"]),
    )
    assert read(packet, RecordKind.A) == DnsAnswer(0, data=(b"\xc0\x00\x02\x09",), ttl=5)


@pytest.mark.parametrize("aliases", [0, 1, 7, 8])
def test_eight_aliases_are_followed(aliases: int) -> None:
    names = [NAME, *(f"n{i}.example" for i in range(aliases))]
    chain = [(names[i], 60, "CNAME", [f"{names[i + 1]}."]) for i in range(aliases)]
    assert len(read(a_response(RecordKind.A, *chain, (names[-1], 60, "A", ["192.0.2.1"])), RecordKind.A).data) == 1


@pytest.mark.parametrize("aliases", [9, 20])
def test_more_aliases_than_eight_are_refused(aliases: int) -> None:
    names = [NAME, *(f"n{i}.example" for i in range(aliases))]
    chain = [(names[i], 60, "CNAME", [f"{names[i + 1]}."]) for i in range(aliases)]
    with pytest.raises(Malformed, match="aliases"):
        read(a_response(RecordKind.A, *chain, (names[-1], 60, "A", ["192.0.2.1"])), RecordKind.A)


def test_aliases_in_a_circle_are_refused() -> None:
    packet = a_response(RecordKind.A, (NAME, 1, "CNAME", ["b.example."]), ("b.example", 1, "CNAME", [f"{NAME}."]))
    with pytest.raises(Malformed, match="aliases"):
        read(packet, RecordKind.A)


@pytest.mark.parametrize("size", ["0003", "0005"])
def test_an_alias_that_is_longer_or_shorter_than_it_says_is_refused(size: str) -> None:
    asked = wire.question(NAME, RecordKind.A)
    alias = bytes.fromhex(f"c00c 0005 0001 0000003c {size} 02 6161 00 00")
    packet = bytes.fromhex("0007 8000 0001 0001 0000 0000") + asked + alias
    with pytest.raises(Malformed, match="longer or shorter"):
        read(packet, RecordKind.A)


def test_two_aliases_of_one_name_are_refused() -> None:
    packet = a_response(RecordKind.A, (NAME, 1, "CNAME", ["a.example."]), (NAME, 1, "CNAME", ["b.example."]))
    with pytest.raises(Malformed, match="two aliases"):
        read(packet, RecordKind.A)


def test_records_of_other_names_types_and_classes_are_nothing() -> None:
    asked = wire.question(NAME, RecordKind.A)
    chaos = b"\xc0\x0c" + b"\x00\x01\x00\x03\x00\x00\x00\x3c\x00\x04" + b"\x7f\0\0\1"
    packet = b"\x00\x07\x80\x00\x00\x01\x00\x01\x00\x00\x00\x00" + asked + chaos
    assert read(packet, RecordKind.A).data == ()
    assert read(a_response(RecordKind.A, ("other.example", 60, "A", ["192.0.2.1"])), RecordKind.A).data == ()
    assert read(a_response(RecordKind.A, (NAME, 60, "TXT", ['"x"'])), RecordKind.A).data == ()


@pytest.mark.parametrize(("minimum", "ttl", "expected"), [(300, 60, 60), (10, 60, 10), (0, 60, 0)])
def test_an_empty_answer_may_be_remembered_as_its_soa_says(minimum: int, ttl: int, expected: int) -> None:
    message = dns.message.from_wire(a_response(RecordKind.CAA))
    soa = f"ns.example. host.example. 1 2 3 4 {minimum}"
    message.authority.append(dns.rrset.from_text("example.internal.", ttl, "IN", "SOA", soa))
    assert read(message.to_wire(), RecordKind.CAA) == DnsAnswer(0, ttl=expected)
    assert read(a_response(RecordKind.CAA), RecordKind.CAA) == DnsAnswer(0, ttl=0)


@pytest.mark.parametrize("rcode", ["SERVFAIL", "NXDOMAIN", "REFUSED", "FORMERR", "NOTIMP"])
def test_an_error_is_an_error_whatever_else_is_in_the_packet(rcode: str) -> None:
    message = dns.message.from_wire(a_response(RecordKind.A, (NAME, 60, "A", ["192.0.2.1"])))
    message.set_rcode(dns.rcode.from_text(rcode))
    found = read(message.to_wire(), RecordKind.A)
    assert (found.rcode, found.data) == (int(dns.rcode.from_text(rcode)), ())


def test_a_packet_that_was_cut_off_says_so() -> None:
    packet = bytearray(a_response(RecordKind.A, (NAME, 60, "A", ["192.0.2.1"])))
    packet[2] |= 0x02
    assert read(bytes(packet), RecordKind.A) == DnsAnswer(0, truncated=True)


def test_too_many_records_are_refused() -> None:
    many = [f"10.0.{i // 200}.{i % 200}" for i in range(257)]
    with pytest.raises(Malformed, match="too many"):
        read(a_response(RecordKind.A, (NAME, 60, "A", many)), RecordKind.A)
    assert len(read(a_response(RecordKind.A, (NAME, 60, "A", many[:256])), RecordKind.A).data) == 256


def a_packet_with(owner: bytes) -> bytes:
    asked = wire.question(NAME, RecordKind.A)
    record = owner + b"\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x7f\0\0\1"
    return b"\x00\x07\x80\x00\x00\x01\x00\x01\x00\x00\x00\x00" + asked + record


HERE = 12 + len(wire.question(NAME, RecordKind.A))


@pytest.mark.parametrize(
    "owner",
    [
        bytes([0xC0, HERE]),  # a pointer to itself
        bytes([0xC0, HERE + 2]),  # forwards
        bytes([1, 97, 0xC0, HERE]),  # a circle through a label
        bytes([0xFF, 0xFF]),  # out of the packet
        bytes([0x40, 97, 0]),  # reserved kinds of labels
        bytes([0x80, 97, 0]),
        bytes([63, *b"a" * 63]) * 4 + b"\0",  # 257 octets
    ],
)
def test_a_name_that_turns_in_circles_or_never_ends_is_refused(owner: bytes) -> None:
    with pytest.raises(Malformed):
        read(a_packet_with(owner), RecordKind.A)


def test_every_packet_that_ends_too_early_is_refused() -> None:
    packet = a_response(
        RecordKind.TXT,
        (NAME, 60, "CNAME", ["b.example."]),
        ("b.example", 60, "TXT", ['"one" "two"']),
    )
    whole = len(packet) - 11  # the OPT record at the end is never looked at
    for size in range(HERE, whole):
        with pytest.raises(Malformed):
            read(packet[:size], RecordKind.TXT)


# ── data ──


def test_the_strings_of_a_text_are_put_together() -> None:
    assert wire.text(b"\x03abc\x00\x02de") == b"abcde"
    assert wire.text(b"") == b""
    with pytest.raises(Malformed):
        wire.text(b"\x03ab")


def test_a_caa_record_is_read() -> None:
    assert wire.caa(b"\x80\x05issueca.example") == (True, "issue", "ca.example")
    assert wire.caa(b"\x01\x09ISSUEWILD;") == (False, "issuewild", ";")
    for data in (b"", b"\x00", b"\x00\x00", b"\x00\x05issu", b"\x00\x03a-b", b"\x00\x01\xe9"):
        with pytest.raises(Malformed):
            wire.caa(data)


# ── anything at all ──

owners = st.sampled_from(["a.example", "b.example", "c.b.example", f"{'d' * 63}.example"])  # few, so that they meet
records = st.one_of(
    st.tuples(owners, st.just("A"), st.ip_addresses(v=4).map(str)),
    st.tuples(owners, st.just("AAAA"), st.ip_addresses(v=6).map(str)),
    st.tuples(owners, st.just("CNAME"), owners.map("{}.".format)),
    st.tuples(owners, st.just("TXT"), st.sampled_from(['"x"', '"one" "two"', '""'])),
    st.tuples(owners, st.just("CAA"), st.sampled_from(['0 issue "ca.example"', '128 tbs "x"', '0 iodef ""'])),
)


@given(owners, st.sampled_from(RecordKind), st.lists(records, max_size=8))
def test_what_another_library_writes_is_read_as_that_library_reads_it(
    name: str, kind: RecordKind, parts: list[tuple[str, str, str]]
) -> None:
    packet = a_response(kind, *((owner, 60, type_, [value]) for owner, type_, value in parts), name=name)
    agree(packet, kind, name)


@given(owners, st.sampled_from(RecordKind), st.lists(records, min_size=1, max_size=6), st.data())
@settings(max_examples=100)
def test_a_damaged_packet_is_read_as_that_library_reads_it_or_refused(
    name: str, kind: RecordKind, parts: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    packet = bytearray(a_response(kind, *((owner, 60, type_, [value]) for owner, type_, value in parts), name=name))
    start = 12 + len(wire.question(name, kind))
    for _ in range(data.draw(st.integers(1, 4))):
        packet[data.draw(st.integers(start, len(packet) - 1))] = data.draw(st.integers(0, 255))
    agree(bytes(packet), kind, name)


def agree(packet: bytes, kind: RecordKind, name: str) -> None:
    """Where both libraries can read a packet, they read the same; where ours cannot, it says so in its own words."""
    try:
        ours = read(packet, kind, name)
    except Malformed:
        return
    try:
        theirs = dns.message.from_wire(packet).resolve_chaining()
    except (dns.exception.DNSException, ValueError):  # it reads more sections than we do
        return
    assert set(ours.data) == {rdata.to_wire() for rdata in theirs.answer or ()}


@given(st.binary(max_size=400), st.sampled_from(RecordKind))
@settings(max_examples=300)
def test_no_packet_makes_anything_but_an_answer_or_a_refusal(rubbish: bytes, kind: RecordKind) -> None:
    asked = wire.question(NAME, kind)
    for packet in (rubbish, b"\x00\x07\x80\x00\x00\x01" + rubbish[:6].ljust(6, b"\0") + asked + rubbish[6:]):
        wire.fits(packet, 7, asked)
        try:
            for data in wire.read(packet, asked).data:
                wire.caa(data) if kind is RecordKind.CAA else wire.text(data)
        except Malformed:
            pass


def test_the_dearest_packet_is_still_cheap() -> None:
    """256 records whose names are all found by the longest way: bounded work, counted in bytes joined."""
    deep = b"".join(b"\x01a" for _ in range(120)) + b"\0"
    asked = wire.question(NAME, RecordKind.A)
    head = b"\x00\x07\x80\x00\x00\x01\x01\x00\x00\x00\x00\x00" + asked
    first = deep + b"\x00\x10\x00\x01\x00\x00\x00\x3c\x00\x00"
    again = bytes([0xC0 | len(head) >> 8, len(head) & 255]) + b"\x00\x10\x00\x01\x00\x00\x00\x3c\x00\x00"
    assert read(head + first + again * 255, RecordKind.A).data == ()
