"""The ACME issuer against our own ACME server, both whole, on both stores: what each promises the other must hold."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.acme_face import Front, open_front
from tests.support.issuing import Rows, a_wish, complete, leaf_of, obtain, patiently
from tests.support.upstream import Through

from holdfast.core.own_ca.ca import CaOptions, CaPolicy, ProfileOptions
from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import chains
from holdfast.issuers.acme import account as acme_account
from holdfast.issuers.acme.issuer import AcmeIssuer
from holdfast.issuers.acme.reading import ResponseContext
from holdfast.issuers.acme.wire import Memory, Wire
from holdfast.issuers.base import Failed, Issued, NeedsProof, Placed
from holdfast.solvers.http01 import HttpStore
from holdfast.store.database import Database
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"


class Published(Rows):
    """Proofs go where the validator of this CA looks for them."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front

    async def put(self, proof: object) -> None:
        await super().put(proof)  # type: ignore[arg-type]
        self._front.office.proofs.update({token: each.key_authorization for token, each in self.proofs.items()})


@dataclass
class OurCaClient:
    front: Front
    wire: Wire
    issuer: AcmeIssuer
    http: HttpStore


@pytest.fixture
async def bench(db: Database, tmp_path: Path) -> AsyncIterator[OurCaClient]:
    profiles = (ProfileOptions(), ProfileOptions(name="short", lifetime_s=6 * 3600))
    policy = replace(CaPolicy(), chaos_nonces=30)
    async with (
        open_front(
            db,
            tmp_path,
            options=CaOptions(profiles=profiles, permitted=("127.0.0.1", "*.holdfast.test")),
            policy=policy,
        ) as front,
        front.office.working(),
    ):
        wire = Wire(Through(front), SystemClock(), Memory(), ResponseContext(directory=front.directory))
        key = ec.generate_private_key(ec.SECP256R1())
        account = await patiently(acme_account.ensure_account, wire, key, terms_agreed=True)
        rows = Published(front)
        yield OurCaClient(front, wire, AcmeIssuer(wire, account), HttpStore(rows.put, rows.delete))


async def test_a_certificate_is_issued_renewed_in_its_window_and_revoked(bench: OurCaClient) -> None:
    issuer = bench.issuer
    first = await obtain(issuer, a_wish(LOCAL), bench.http)
    assert isinstance(first, Issued)
    window = await issuer.renewal_window(first.chain_pem)
    assert window is not None
    certificate = leaf_of(first)
    assert certificate.not_valid_before_utc < window.start < window.end < certificate.not_valid_after_utc
    assert timedelta(minutes=1) <= timedelta(seconds=window.ask_again_after_s) <= timedelta(days=1)

    name = chains.renewal_name(certificate)
    second = await obtain(issuer, a_wish(LOCAL, replaces=name), bench.http)
    assert isinstance(second, Issued)
    with pytest.raises(Refused) as refused:
        await patiently(issuer.place_order, a_wish(LOCAL, replaces=name))
    assert refused.value.reason == Reason.REPLACES_REJECTED

    await patiently(issuer.revoke, certificate.public_bytes(Encoding.DER), 1)
    await patiently(issuer.revoke, certificate.public_bytes(Encoding.DER), 1)
    moved = await issuer.renewal_window(first.chain_pem)
    assert moved is not None
    assert moved.end <= SystemClock().now()  # at once, says the CA


async def test_a_predecessor_that_the_ca_does_not_know_is_told_apart_from_other_refusals(bench: OurCaClient) -> None:
    for unknown in ("AAAA.AQ", "nonsense"):
        with pytest.raises(Refused) as refused:
            await patiently(bench.issuer.place_order, a_wish(LOCAL, replaces=unknown))
        assert refused.value.reason == Reason.REPLACES_REJECTED
    assert isinstance(await patiently(bench.issuer.place_order, a_wish(LOCAL)), Placed)


async def test_a_profile_is_chosen_by_its_name_and_an_unknown_one_is_not_sent(bench: OurCaClient) -> None:
    issued = await obtain(bench.issuer, a_wish(LOCAL, profile="short"), bench.http)
    certificate = leaf_of(issued)
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert life < timedelta(hours=8)
    with pytest.raises(Refused, match="short") as refused:
        await bench.issuer.place_order(a_wish(LOCAL, profile="long"))
    assert refused.value.reason == Reason.PROFILE_UNKNOWN


async def test_an_order_is_resumed_where_it_was_left_at_each_step(bench: OurCaClient) -> None:
    request = a_wish(LOCAL)
    await patiently(bench.issuer.place_order, request)  # and the reply is lost
    found = await patiently(bench.issuer.find_order, request)
    assert found is not None
    again = AcmeIssuer(bench.wire, bench.issuer._account)  # another replica
    assert isinstance(await patiently(again.order_status, found.ref, request), NeedsProof)
    issued = await complete(again, found.ref, request, bench.http)
    await patiently(bench.issuer.finalize, found.ref, request)
    assert await patiently(bench.issuer.order_status, found.ref, request) == issued


async def test_an_order_that_is_given_up_is_over(bench: OurCaClient) -> None:
    request = a_wish(LOCAL)
    placed = await patiently(bench.issuer.place_order, request)
    await patiently(bench.issuer.cancel, placed.ref)
    look = await patiently(bench.issuer.order_status, placed.ref, request)
    assert isinstance(look, Failed)
    assert look.reason == Reason.ORDER_EXPIRED


async def test_a_name_that_the_ca_does_not_issue_for_is_refused_by_name(bench: OurCaClient) -> None:
    with pytest.raises(Refused, match=r"kitchen\.invalid") as refused:
        await patiently(bench.issuer.place_order, a_wish(LOCAL, "kitchen.invalid"))
    assert refused.value.reason == Reason.NAME_REFUSED
