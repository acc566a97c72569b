"""The pages say what the code does."""

import re
import shlex
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from pkgutil import walk_packages

import pytest
from scripts.machines_page import MACHINES, Machine
from scripts.make_reference import FOLDER, MADE, PAGES

from holdfast import core
from holdfast.cli.main import COMMANDS, load
from holdfast.core.reasons import MEANINGS, Reason
from tests.support.command_texts import texts, wrong

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_is_what_the_code_would_write(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == MADE + PAGES[page](), "run: make docs"


def test_every_table_of_moves_is_drawn() -> None:
    modules = [import_module(each.name) for each in walk_packages(core.__path__, "holdfast.core.")]
    tables = {(module.__name__, name) for module in modules for name in vars(module) if name.endswith("MOVES")}
    drawn = {(machine.module.__name__, machine.moves) for machine in MACHINES}
    assert tables == drawn
    assert len(drawn) == len(MACHINES) == 12


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.title)
def test_a_machine_reaches_each_of_its_states_from_where_it_begins(machine: Machine) -> None:
    reached, table = set(machine.begins), machine.table
    while more := {after for (before, _), after in table.items() if before in reached} - reached:
        reached |= more
    assert reached == set(type(machine.begins[0]))


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*.md")) + sorted(
    path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")
))  # fmt: skip
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [link for link in LINK.findall(text) if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []


def test_every_page_has_its_place_in_the_site() -> None:
    listed = set(re.findall(r"([A-Za-z0-9/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert {page for page in there if not re.match(r"decisions/\d", page)} == listed


def test_every_decision_has_a_number_of_its_own_and_a_line_in_the_list() -> None:
    pages = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))
    assert [page[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    listed = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \|", (ROOT / "docs/decisions/README.md").read_text(), re.MULTILINE)
    assert listed == [(page[:4], page) for page in pages]
    for page in pages:
        assert (ROOT / "docs" / "decisions" / page).read_text(encoding="utf-8").startswith(f"# {page[:4]} ")


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert named <= targets


def test_every_reason_code_is_explained_with_its_own_sentence() -> None:
    text = (ROOT / "docs" / "reasons.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.split("\n### ")[1:]}
    assert set(sections) == {each.value for each in Reason}
    for reason, meaning in MEANINGS.items():
        said = sections[reason.value].strip().split("\n\n")
        assert said[1] == meaning.sentence
        assert ("An alert is sent at once" in said[2]) is meaning.alert
        assert len(said[3]) > 30, "what to do about it"


@pytest.mark.parametrize("page", ["README.md", "docs/reasons.md", *sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/tutorials/*.md")]
)])  # fmt: skip
def test_every_command_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {tuple(found.split()) for found in re.findall(r"(?:`|\$ )holdfast((?: [a-z][a-z-]*){1,2})", text)}
    assert [" ".join(words) for words in sorted(named) if not exists(words)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/reasons.md", *sorted(
    path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/guides/*.md")
)])  # fmt: skip
def test_every_command_line_of_a_page_can_be_typed(page: str) -> None:
    """With options that exist and arguments enough; those of tutorials are typed by a test of their own."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", "")
    lines = re.findall(r"^(?:\$|   ) (?:[A-Z_]+=\S+ )*(holdfast .+)$|`(holdfast .+?)`", text, re.MULTILINE)
    assert [each for line in lines for each in wrong(_typed(line[0] or line[1]))] == []


def _typed(line: str) -> str:
    """Without remarks, pipes and redirections; a word with odd characters counts as any other."""
    words = shlex.split(re.split(r" {2,}(?=[a-z#])", re.sub(r" {2,}--", " --", line))[0], comments=True)
    own = list(takewhile(lambda word: word not in ("|", "&", "&&", ">", "<", "2>"), words))
    return " ".join(word if re.fullmatch(r"[\w./=-]+|…", word) else re.sub(r"[^\w=-]", "X", word) for word in own)


def test_every_command_that_the_code_tells_people_to_type_can_be_typed() -> None:
    modules = sorted((ROOT / "src" / "holdfast").rglob("*.py"))
    assert [(path.name, each) for path in modules for text in texts(path) for each in wrong(text)] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Add one: holdfast issuer add letsencrypt NAME.", ""),
        ("Add one: holdfast issuer add NAME.", "it needs ['kind', 'name']"),
        ("See: holdfast issuer add --help", ""),
        ("'holdfast issuer add' makes one", ""),
        ("holdfast issuer add letsencrypt NAME --preset x", "there is no option --preset"),
        ("holdfast notify resume X", "there is no command resume"),
        ("holdfast change --renew-before 30d", "it needs ['certificate']"),
        ("holdfast is a word, too", ""),
    ],
)
def test_a_command_that_cannot_be_typed_is_found_in_a_text(text: str, why: str) -> None:
    assert [each.partition(": ")[2] for each in wrong(text)] == ([why] if why else [])


def exists(words: tuple[str, ...]) -> bool:
    """The first word is a command; the second one of its commands, if it is a group."""
    if words[0] not in COMMANDS:
        return False
    inner = getattr(load(words[0]), "commands", None)
    return len(words) < 2 or inner is None or words[1] in inner
