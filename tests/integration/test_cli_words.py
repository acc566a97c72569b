"""What commands say when a name, a version or an address is not what was meant: what it is, and what to type."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.api import a_desk
from tests.support.terminal import a_terminal

from holdfast import __version__
from holdfast.core.access import Role
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.web.serve import AddressTaken, bind
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
NAME = "ed.example"


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what commands speak to is tested on both."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


async def test_one_that_is_archived_is_said_to_be_with_its_id(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        row = (await typed.ok("issue", NAME, "--wait", "-o", "json")).json
        told = await typed.ok("archive", NAME, "--yes")
        assert f"holdfast explain {row['id']}" in told.out + told.err
        for words in (["renew", NAME], ["get", NAME], ["fetch", NAME], ["status", NAME]):
            said = await typed(*words)
            assert (said.code, f"{NAME} is archived, as {row['id']}" in said.err) == (6, True), said.err
            assert f"holdfast get {row['id']}" in said.err
        assert "archived" in (await typed.ok("get", row["id"])).out


async def test_nobody_hears_of_what_is_archived_or_alike_that_they_may_not_see(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_(Role.ADMIN)
        made = [
            await admin.post("/certificates", {"names": [f"n{n}.example"], "owner": owner})
            for n, owner in enumerate(("mine", "theirs"))
        ]
        common = "certificate_"
        every = await admin("GET", f"/certificates/{common}")
        assert every.status_code == 404
        assert all(each["id"] in every.json()["detail"] for each in made)
        assert "ambiguous" in every.json()["detail"]
        mine = await desk.as_(Role.VIEWER, "mine", owners=("mine",))
        assert (await mine("GET", f"/certificates/{common}")).json()["detail"] == f"There is no certificate '{common}'."
        for each in made:
            await admin("DELETE", f"/certificates/{each['id']}")
        own, other = [(await mine("GET", f"/certificates/{each['name']}")).json()["detail"] for each in made]
        assert "is archived" in own
        assert other == "There is no certificate 'n1.example'."


async def test_a_version_that_is_not_there_is_not_one_that_will_come(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        await typed.ok("issue", NAME, "--wait")
        admin = await typed.desk.as_(Role.ADMIN)
        answer = await admin("GET", f"/certificates/{NAME}/chain", version="nope")
        assert (answer.status_code, answer.json()["code"]) == (404, "no-such-version")
        assert answer.json()["detail"] == f"{NAME} has no version 'nope'."


async def test_what_is_typed_is_refused_in_the_words_of_commands(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        for words, hint in (
            (
                ["issue", "q.example", "--staging"],
                "There is no issuer for tests.\nhint: Add one, such as: holdfast issuer add",
            ),
            (["ls", "-l", "bad"], "hint: For example: --label team=web"),
            (["renew", "-l", "bad"], "hint: For example: --label team=web"),
            (["audit", "ls", "--since", "then"], "'then' is no time."),
            (["wait", NAME, "--timeout", "soon"], "'soon' is no span of time"),
        ):
            said = await typed(*words)
            assert (said.code, hint in said.err) == (2, True), said.err
        twice = await typed("issue", "q.example", "--issuer", "ca", "--issuer", "ca")
        assert (twice.code != 0, "The issuer ca is named twice." in twice.err) == (True, True)
        for since in ("1h", "-1h", "2026-11-16", "2026-11-16T08:00Z"):
            await typed.ok("audit", "ls", "--since", since)
        assert (await typed.ok("--version")).out == f"{__version__}\n"


async def test_a_token_is_revoked_by_a_unique_prefix(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        for name in ("one", "two"):
            await typed.ok("token", "create", name, "--role", "viewer")
        rows = {row["name"]: row["id"] for row in (await typed.ok("token", "ls", "-o", "json")).json}
        assert (await typed("token", "revoke", "--yes", rows["one"][:4])).code == 6  # a slip of the hand
        said = await typed.ok("token", "revoke", "--yes", rows["one"][:-1])
        assert said.err == f"Token {rows['one']} is revoked.\n"
        left = {row["name"] for row in (await typed.ok("token", "ls", "-o", "json")).json if not row["revoked_at"]}
        assert left == {"two"}


async def test_waiting_for_what_was_cancelled_is_not_waiting_for_something_under_way(
    db: Database, tmp_path: Path
) -> None:
    async with a_terminal(db, tmp_path) as typed:
        await typed.ok("issue", NAME, "--approval")
        await typed.ok("cancel", NAME)
        said = await typed("wait", NAME, "--timeout", "1s")
        assert said.code == 3
        assert f"Nothing is under way. Go on waiting: holdfast wait {NAME}" in said.err


async def test_what_is_no_number_is_not_said_to_be_too_large(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_(Role.ADMIN)
        headers = {"Authorization": f"Bearer {admin.token}", "Content-Type": "application/json"}
        body = '{"names": ["a.example"], "lifetime_s": NaN}'
        answer = await desk.http.post("/certificates", content=body, headers=headers)
        assert answer.json()["detail"] == "lifetime_s: It is a number, and not infinite."


def test_a_taken_address_is_told_by_the_option_that_named_it() -> None:
    line = bind("127.0.0.1", 0)
    try:
        line.listen()
        with pytest.raises(AddressTaken) as refused:
            bind("127.0.0.1", line.getsockname()[1], setting="--http")
        assert refused.value.hint.endswith("choose another address (--http).")
    finally:
        line.close()
