"""What the clients of `make cluster` saw: the figures are made of it."""

from tests.cluster.record import Round, crl_faults, lines, toll

ROUND = Round(fault="switchover", began=100.0, over=130.0)


def at(second: float, what: str = "certificate", **facts: object) -> dict[str, object]:
    return {"at": second, "what": what, **facts}


def test_the_longest_time_without_a_certificate_is_counted_from_the_fault_on() -> None:
    seen = [at(99.0), at(101.0), at(109.5), at(110.0), at(130.5)]
    assert toll(seen, ROUND).first_success == 20.0
    seen = [at(99.0), at(107.0), *(at(108.0 + n) for n in range(22))]
    assert toll(seen, ROUND).first_success == 7.0


def test_only_what_happened_in_the_round_is_counted() -> None:
    seen = [at(99.0, "request failed"), at(101.0, "request"), at(102.0, "request failed"), at(131.0, "order failed")]
    found = toll(seen, ROUND)
    assert (found.requests, found.failed, found.orders_failed) == (2, 1, 0)


def test_a_list_that_goes_back_or_changes_without_a_number_is_found() -> None:
    good = [at(n, "crl", url="u", number=n, digest=str(n)) for n in (1, 1, 2, 5)]
    assert crl_faults(good) == []
    assert crl_faults([*good, at(6, "crl", url="v", number=1, digest="other")]) == [], "each list has its own numbers"
    assert crl_faults([*good, at(6, "crl", url="u", number=4, digest="4")]) == ["u: number 4 after 5"]
    assert crl_faults([*good, at(6, "crl", url="u", number=5, digest="other")]) == ["u: number 5 after 5"]


def test_a_line_that_is_being_written_is_left_for_later() -> None:
    assert lines('{"at": 1}\n{"at": 2') == [{"at": 1}]
