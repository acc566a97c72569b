"""How descriptors are divided between the engine and its listeners."""

import pytest

from holdfast.listening.bounds import MIN_CONNECTIONS, divided


@pytest.mark.parametrize(
    ("allowed", "wanted", "connections"),
    [
        (20_000, 1000, 1000),  # enough for all
        (1024, 1000, (1024 - 512) // 4),  # the engine's reserve first
        (600, 1000, 300 // 4),  # half, if the reserve would leave clients nothing
        (64, 1000, MIN_CONNECTIONS),  # too few for anything: commands must still get through
    ],
)
def test_the_engine_keeps_its_reserve_and_listeners_share_the_rest(allowed: int, wanted: int, connections: int) -> None:
    assert divided(allowed, wanted, listeners=4, reserved=512) == connections
