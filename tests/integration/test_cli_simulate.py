"""`holdfast simulate` as it is typed: the months to come of this fleet, what if, and how programs read it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.api import a_desk
from tests.support.terminal import Terminal, a_terminal, plain

from holdfast.core.access import Role
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
MONTH = re.compile(r"20\d\d-\d\d(?:-\d\d)?\b")


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what commands speak to is tested on both."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


def dateless(text: str) -> str:
    return MONTH.sub("<month>", plain(text))


async def a_fleet(typed: Terminal, number: int = 3) -> None:
    for n in range(number):
        await typed.ok("issue", f"n{n}.example.com", "--wait")


async def test_the_year_to_come_and_what_would_not_fit(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        nothing = await typed.ok("simulate")
        assert (nothing.out, nothing.err) == ("", "Nothing is to be renewed in these months.\n")
        await a_fleet(typed)
        usual = await typed.ok("simulate", tty=True)
        header, *rows = dateless(usual.out).splitlines()
        assert header == "MONTH  CA  ORDERS  DEPLOYMENTS  BUSIEST DAY  BUDGET  FITS"
        assert all(re.fullmatch(r"<month>  ca  \d+  \d+  <month> \(\d+\)  \d+ %  yes", row) for row in rows)
        assert re.search(r"^3 certificates, \d+ orders: everything fits\.$", usual.err, re.MULTILINE)
        tight = await typed(
            "simulate", "--issuer", "ca", "--certificates", "900", "--orders", "10/1d", "--lifetime", "47d"
        )
        assert tight.code == 10
        assert "  NO" in dateless(tight.out)
        verdict, advice = dateless(tight.err).splitlines()
        assert re.fullmatch(
            r"903 certificates, \d+ orders\. <month> does not fit at ca: \d+ orders in the week from <time>, "
            r"and 70 are allowed\.",
            verdict,
        )
        assert advice == "Give some of them a second CA, or ask this one for more: holdfast issuer budget"


async def test_programs_get_the_whole_outlook(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        await a_fleet(typed, 1)
        found = (await typed.ok("simulate", "--months", "2", "-o", "json")).json
        assert (found["certificates"], found["fits"], len(found["months"])) == (1, True, 2)
        assert {"month", "issuer", "orders", "names", "used_percent", "problem"} <= found["months"][0].keys()
        assert len((await typed.ok("simulate", "--months", "2", "-o", "name")).out.splitlines()) == 2
        wide = await typed.ok("simulate", "-o", "wide")
        assert (
            wide.plain.splitlines()[0]
            == "MONTH  CA  ORDERS  NAMES  DEPLOYMENTS  BUSIEST DAY  BUSIEST HOUR  BUDGET  FITS"
        )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--issuer", "nowhere"], "There is no issuer named 'nowhere'."),
        (["--lifetime", "soon"], "'soon' is no span of time."),
        (["--issuer", "ca", "--orders", "many"], "'many' cannot be read."),
        (["--orders", "300/3h"], "--orders is about one issuer: name it."),
    ],
    ids=["ca", "lifetime", "orders", "orders-of-none"],
)
async def test_what_cannot_be_simulated_is_said_in_a_sentence(
    db: Database, tmp_path: Path, args: list[str], words: str
) -> None:
    async with a_terminal(db, tmp_path) as typed:
        said = await typed("simulate", *args)
        assert (said.code != 0, said.out) == (True, "")
        assert words in said.err


async def test_half_a_limit_is_refused_and_a_forecast_needs_the_right_to_see_everything(
    db: Database, tmp_path: Path
) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_(Role.ADMIN)
        half = await admin("GET", "/forecast", issuer="ca", orders_burst=5)
        assert (half.status_code, half.json()["code"]) == (400, "half-a-limit")
        narrow = await desk.as_(Role.VIEWER, "narrow", owners=("web",))
        assert (await narrow("GET", "/forecast")).status_code == 403


async def test_one_whose_attempt_is_under_way_is_counted(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_(Role.ADMIN)
        for n in range(2):
            await admin.post("/certificates", {"name": f"n{n}.example.com", "names": [f"n{n}.example.com"]})
        found = await admin.get("/forecast", months=1)
        assert (found["certificates"], [row["orders"] for row in found["months"]]) == (2, [2])
