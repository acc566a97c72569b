"""Bad input is refused with a code, a sentence of ours and a next step: no word of a library reaches a person."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import a_desk
from tests.support.terminal import a_terminal

from holdfast.api import openapi
from holdfast.config import load
from holdfast.errors import SettingRefused, StoreRefused
from holdfast.from_settings import open_store
from holdfast.operations import inputs, mistakes
from holdfast.ports import no_points
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
LIBRARY = re.compile(r"should|pattern|Input|valid (string|integer|number)|\^\[|pydantic|Value error|Field required")


@pytest.fixture
def make_engine(tmp_path: Path) -> Any:
    """One store is enough: what is refused here never gets to it."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


def _wish(**fields: Any) -> dict[str, Any]:
    return {"names": [NAME], **fields}


WISHES: dict[str, tuple[dict[str, Any], str]] = {
    "101 names": (_wish(names=[f"n{n}.example.com" for n in range(101)]), "at most 100 names; these are 101"),
    "201 names": (_wish(names=["a.example"] * 201), "There are 201, and at most 200 are allowed"),
    "no name": (_wish(names=[]), "There are 0, and at least 1 must be given"),
    "a name of 300": (_wish(names=["a." * 150 + "example"]), "a name has at most 253"),
    "a label of 64": (_wish(names=["a" * 64 + ".example"]), "a label of 64 characters; a label has at most 63"),
    "bad IDNA": (_wish(names=["xn--a.example"]), "not a valid internationalised label"),
    "an underscore": (_wish(names=["_acme.example"]), "is not made of letters, digits and inner hyphens"),
    "a mailbox": (_wish(names=["root@example.com"]), "is not made of letters"),
    "a URL": (_wish(names=["https://www.example.com/a"]), "is not made of letters"),
    "300.1.1.1": (_wish(names=["300.1.1.1"]), "ends in a number like an address, and is none"),
    "a control character": (_wish(names=["a\u0000b"]), "control character (U+0000)"),
    "a bad label": (_wish(labels={"a b": "c"}), "A label's name has 1 to 63 letters"),
    "a bad value": (_wish(labels={"a": "b c"}), "A label's value has at most 63 letters"),
    "33 labels": (_wish(labels={f"l{n}": "" for n in range(33)}), "There are more, and at most 32 are allowed"),
    "a bad owner": (_wish(owner="a b"), "An owner has at most 100 letters"),
    "a short life": (_wish(lifetime_s=10), "It is at least 300"),
    "a fraction": (_wish(renewal={"fraction": 2}), "It is at most 0.95"),
    "both rules": (_wish(renewal={"fraction": 0.5, "before_s": 60}), "either a fraction or 'before', not both"),
    "a day": (_wish(windows=[{"days": [7]}]), "windows.0.days.0: It is at most 6"),
    "no window": (_wish(windows=[{"opens": 5, "closes": 5}]), "opens and closes at different minutes"),
    "a key": (_wish(key="dsa"), "It is one of 'ec-p256', 'ec-p384'"),
    "a flag": (_wish(reuse_key="yes"), "reuse_key: It is true or false"),
    "a CA": (_wish(issuers=["a\nb"]), "It has 1 to 253 characters, without control"),
    "a misspelt field": (_wish(colour="red"), "colour: There is no such field"),
    "no names at all": ({}, "names: It must be given"),
}


async def test_a_bad_wish_is_refused_in_words(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        for what, (wish, words) in WISHES.items():
            answer = await ask("POST", "/certificates", wish)
            said = answer.json()
            assert answer.status_code in (400, 422), what
            assert words in said["detail"], what
            _in_our_words(said)


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a CA's name": ("/issuers", {"name": "My CA"}, "1 to 63 lower-case letters, digits and inner hyphens"),
    "a channel's name": ("/channels", {"name": "A B", "kind": "webhook"}, "1 to 63 lower-case letters"),
    "a token's name": ("/tokens", {"name": "a b", "role": "viewer"}, "It has 1 to 80 letters, digits and _ . @ + -"),
    "a role": ("/tokens", {"name": "a", "role": "king"}, "It is one of 'admin', 'operator'"),
    "an age": ("/tokens", {"name": "a", "role": "viewer", "expires_in_s": 0}, "expires_in_s: It is more than 0"),
    "a CA's rule": ("/issuers", {"name": "a", "settings": {"approval_required": 1}}, "approval_required is 1"),
}


async def test_other_bounded_fields_are_refused_in_words(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        for what, (path, body, words) in OTHERS.items():
            said = (await ask("POST", path, body)).json()
            assert words in said["detail"], what
            _in_our_words(said)
        query = (await ask("GET", "/certificates", limit=0)).json()
        assert query["detail"] == "limit: It is at least 1."


def _in_our_words(said: dict[str, Any]) -> None:
    told = json.dumps([said["detail"], said["hint"], said["errors"]])
    assert not LIBRARY.search(told), told
    assert said["code"]
    assert said["hint"]


def test_every_pattern_of_the_api_is_said_in_words() -> None:
    found = set(re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', json.dumps(openapi.whole())))
    assert {json.loads(each) for each in found} | {_pattern(inputs.LabelName)} <= set(mistakes.PATTERNS)


def _pattern(kind: Any) -> str:
    return str(kind.__metadata__[0].pattern)


def test_an_unknown_kind_of_mistake_still_has_a_sentence() -> None:
    assert mistakes.words("is_instance_of", {}) == "It has another form than is needed here."
    assert mistakes.words("datetime_parsing", {"error": "x"}).startswith("It is a time")


async def test_duplicates_are_dropped_and_no_other_name_is(db: Database, tmp_path: Path) -> None:
    names = ["n0.example.com", "N0.example.com", *(f"n{n}.example.com" for n in range(100))]
    async with a_desk(db, tmp_path) as desk:
        made = await (await desk.as_()).post("/certificates", {"names": names})
        assert len(made["names"]) == 100


async def test_at_the_terminal_the_next_step_is_shown(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        refused = await typed("issue", "300.1.1.1")
        assert refused.code != 0
        assert "hint: An IPv4 address has four numbers from 0 to 255" in refused.err
        url = await typed("issue", "https://www.example.com/a")
        assert "without scheme, port and path: www.example.com" in url.err


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HOLDFAST_STORE_DATA_DIR", "/etc/hosts/d", "store.data_dir: the folder /etc/hosts/d cannot be made"),
        ("HOLDFAST_STORE_DATA_DIR", "/proc/x", "store.data_dir: the folder /proc/x cannot be made"),
        ("HOLDFAST_STORE_URL", "sqlite:////etc/hosts/d/x.sqlite", "store.url: the folder /etc/hosts/d cannot"),
    ],
    ids=["under a file", "where no folder can be", "a database under a file"],
)
def test_a_data_folder_that_cannot_be_is_refused_at_the_start(
    tmp_path: Path, variable: str, value: str, words: str
) -> None:
    settings = load(None, {"HOLDFAST_STORE_DATA_DIR": str(tmp_path), variable: value}, Path.read_bytes)
    with pytest.raises(SettingRefused, match=re.escape(words)) as refused:
        open_store(settings, SystemClock(), no_points)
    assert refused.value.hint


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").mkdir()
    with pytest.raises(StoreRefused, match=r"x\.sqlite is a folder, and not a database"):
        SqliteEngine(tmp_path / "x.sqlite", SystemClock())
