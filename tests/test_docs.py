"""The pages say what the code does."""

import re
from pathlib import Path

import pytest
from scripts.make_reference import FOLDER, MADE, PAGES

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_is_what_the_code_would_write(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == MADE + PAGES[page](), "run: make docs"


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*.md")) + sorted(
    path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")
))  # fmt: skip
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [link for link in LINK.findall(text) if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert named <= targets
