"""Chains that come in pieces, and what a process remembers of its CAs."""

import asyncio
import base64
from itertools import permutations

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.issuing import a_wish
from tests.support.pki import a_key, a_leaf, intermediate, root

from holdfast.core.key_kind import KeyKind
from holdfast.issuers import chains
from holdfast.issuers.memory import Remembered
from holdfast.pki.chain import parse_bundle
from holdfast.world import SystemClock

LEAF, ABOVE, ROOT = a_leaf(), intermediate(), root()
STRANGER = intermediate(number=202, root_number=201)


def test_a_chain_is_put_in_order_without_its_root_and_without_strangers() -> None:
    for pool in permutations([ABOVE, ROOT, STRANGER, LEAF]):
        made = chains.above(LEAF, pool)
        assert made is not None
        assert parse_bundle(made) == (LEAF, ABOVE)


def test_a_chain_may_lack_its_root_and_not_the_issuer_of_the_certificate() -> None:
    made = chains.above(LEAF, [ABOVE])
    assert made is not None
    assert parse_bundle(made) == (LEAF, ABOVE)
    assert chains.above(LEAF, [ROOT, STRANGER]) is None
    assert chains.above(LEAF, []) is None


def test_what_a_root_issued_itself_stands_alone() -> None:
    made = chains.above(ABOVE, [ROOT])
    assert made is not None
    assert parse_bundle(made) == (ABOVE,)


def test_a_certificate_is_read_as_pem_and_as_base64_with_or_without_breaks() -> None:
    pem = LEAF.public_bytes(Encoding.PEM).decode()
    plain = base64.b64encode(LEAF.public_bytes(Encoding.DER)).decode()
    broken = "\n".join(plain[at : at + 64] for at in range(0, len(plain), 64))
    for text in (pem, plain, broken, f"  {plain}\r\n", chains.text(LEAF)):
        assert chains.read(text) == (LEAF,)


@pytest.mark.parametrize(
    "text", ["", " ", None, 7, [], {}, "????", "bm90IGEgY2VydA==", "-----BEGIN CERTIFICATE-----\nAAAA\n", "é"], ids=repr
)
def test_anything_else_is_no_certificate(text: object) -> None:
    assert chains.read(text) == ()


def test_a_certificate_is_ours_by_its_key_alone() -> None:
    key, other = a_key(), a_key(KeyKind.EC_P256, 2)
    assert chains.is_for(LEAF, a_wish("any.example.internal", key=key).csr)  # the key of all leaves here
    assert not chains.is_for(LEAF, a_wish("any.example.internal", key=other).csr)


# ── Remembering ──


class Hand(SystemClock):
    at = 0.0

    def monotonic(self) -> float:
        return self.at


@pytest.mark.anyio
async def test_many_who_want_the_same_at_once_fetch_it_once() -> None:
    fetched, remembered = 0, Remembered(Hand())

    async def fetch() -> int:
        nonlocal fetched
        await asyncio.sleep(0)
        fetched += 1
        return fetched

    assert await asyncio.gather(*(remembered.kept("token", fetch, 60) for _ in range(20))) == [1] * 20


@pytest.mark.anyio
async def test_a_value_is_fetched_anew_when_it_is_old_or_turned_out_to_be_of_no_use() -> None:
    clock = Hand()
    remembered, made = Remembered(clock), iter(range(100))

    async def fetch() -> list[int]:
        return [next(made)]

    first = await remembered.kept("token", fetch, 60)
    clock.at = 60
    assert await remembered.kept("token", fetch, 60) is first
    clock.at = 61
    second = await remembered.kept("token", fetch, 60)
    assert second == [1]
    remembered.forget("token", first)  # somebody comes late with the old one
    assert await remembered.kept("token", fetch, 60) is second
    remembered.forget("token", second)
    assert await remembered.kept("token", fetch, 60) == [2]


@pytest.mark.anyio
async def test_who_fails_to_fetch_leaves_it_to_the_next() -> None:
    remembered, answers = Remembered(Hand()), iter([OSError("away"), "token"])

    async def fetch() -> object:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    with pytest.raises(OSError, match="away"):
        await remembered.kept("token", fetch, 60)
    assert await remembered.kept("token", fetch, 60) == "token"
