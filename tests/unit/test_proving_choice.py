"""Which of the proofs that a CA offers is published: the operator's rules decide, in their order."""

from dataclasses import dataclass

import pytest

from holdfast.core.certificate import CertificateSpec
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.solver import Provable, unproved
from holdfast.engine.issuance.challenges import SolverRule, by_rules, choose, solvers_of, to_json
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


NAMED = (SolverRule(names=("*",), solver=HTTP), SolverRule(names=("*.corp.example",), solver=DNS, name="cf"))


@pytest.mark.parametrize(
    ("challenge", "only", "solver"), [("any", None, HTTP), ("dns-01", None, DNS), ("any", "cf", DNS)]
)
def test_a_certificate_may_ask_for_its_challenge_or_its_solver(challenge: str, only: str | None, solver: Named) -> None:
    chosen = choose([offers("www.corp.example", "http-01", "dns-01")], by_rules(NAMED), challenge, only)
    assert isinstance(chosen, list)
    assert [each.solver for each in chosen] == [solver]


@pytest.mark.parametrize(("challenge", "only"), [("tls-alpn-01", None), ("http-01", "cf"), ("any", "other")])
def test_no_other_solver_takes_the_place_of_the_one_that_is_asked_for(challenge: str, only: str | None) -> None:
    asked = [offers("www.corp.example", "http-01", "dns-01")]
    assert choose(asked, by_rules(NAMED), challenge, only) == "www.corp.example"


def test_what_was_published_is_removed_by_the_solver_that_published_it() -> None:
    [response] = offers("www.corp.example", "dns-01")
    first = SolverRule(names=("*",), solver=Named("dns-01", side_by_side=False), name="first")
    [chosen], unsolved = solvers_of([{**to_json(response), "solver": "cf"}], by_rules((first, *NAMED)))
    assert (chosen.solver, unsolved) == (DNS, [])


@pytest.mark.parametrize(
    ("names", "wishes", "left"),
    [
        (("www.corp.example",), {}, ()),
        (("*.corp.example", "*.other.example"), {}, ("*.other.example",)),
        (("www.other.example",), {"challenge": "dns-01"}, ("www.other.example",)),
        (("www.corp.example",), {"challenge": "dns-01"}, ()),
        (("www.corp.example",), {"challenge": "tls-alpn-01"}, ("www.corp.example",)),
        (("www.corp.example",), {"solver": "gone"}, ("www.corp.example",)),
        (("192.0.2.7",), {}, ()),
        (("192.0.2.7",), {"solver": "all"}, ("192.0.2.7",)),
    ],
)
def test_names_that_no_solver_can_prove_are_known_before_they_are_tried(
    names: tuple[str, ...], wishes: dict[str, str], left: tuple[str, ...]
) -> None:
    known = [
        Provable(type="http-01", names=("*",)),
        Provable(type="dns-01", names=("*.corp.example",), solver="cf"),
        Provable(type="dns-01", names=("192.0.2.7",), solver="all"),
    ]
    identifiers = tuple(Identifier("ip" if each[0].isdigit() else "dns", each) for each in names)
    spec = CertificateSpec(name="a", identifiers=identifiers, issuers=("le",), **wishes)
    assert tuple(each.value for each in unproved(spec, known)) == left
