"""Which of the proofs that a CA offers is published: the operator's rules decide, in their order."""

from dataclasses import dataclass

import pytest

from holdfast.core.own_ca.acme import Identifier
from holdfast.engine.issuance.challenges import SolverRule, by_rules, choose
from holdfast.issuers.base import ChallengeResponse


@dataclass(frozen=True)
class Named:
    """A solver that is only looked at."""

    type: str
    side_by_side: bool = True

    async def publish(self, response: ChallengeResponse) -> None: ...

    async def visible(self, response: ChallengeResponse) -> bool:
        return True

    async def clean(self, response: ChallengeResponse) -> None: ...


HTTP, DNS, ALPN = Named("http-01"), Named("dns-01"), Named("tls-alpn-01")
RULES = (
    SolverRule(names=("*.corp.example",), solver=DNS),
    SolverRule(names=("www.corp.example", "shop.example", "192.0.2.7"), solver=ALPN),
    SolverRule(names=("*",), solver=HTTP),
)


def offers(name: str, *types: str) -> list[ChallengeResponse]:
    identifier = Identifier("ip" if name[0].isdigit() else "dns", name)
    return [
        ChallengeResponse(type=each, identifier=identifier, token=each, key_authorization=f"{each}.key")
        for each in types
    ]


@pytest.mark.parametrize(
    ("name", "offered", "solver"),
    [
        ("www.corp.example", ("http-01", "tls-alpn-01", "dns-01"), DNS),
        ("www.corp.example", ("http-01", "tls-alpn-01"), ALPN),
        ("shop.example", ("http-01", "dns-01", "tls-alpn-01"), ALPN),
        ("shop.example", ("tls-alpn-01", "dns-01", "http-01"), ALPN),
        ("192.0.2.7", ("http-01", "tls-alpn-01"), ALPN),
        ("other.example", ("tls-alpn-01", "dns-01", "http-01"), HTTP),
    ],
)
def test_the_first_rule_that_fits_decides_and_not_the_order_of_the_ca(
    name: str, offered: tuple[str, ...], solver: Named
) -> None:
    chosen = choose([offers(name, *offered)], by_rules(RULES))
    assert isinstance(chosen, list)
    assert [(each.solver, each.response.type) for each in chosen] == [(solver, solver.type)]


def test_a_name_with_no_proof_that_can_be_published_is_told() -> None:
    assert choose([offers("shop.example", "http-01"), offers("*.example", "dns-01")], by_rules(RULES)) == "*.example"
