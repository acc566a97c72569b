"""`make shape`: how large the source is, how often it repeats itself, and how many files a change touches.

The rules of counting are in the docstrings below. The goals compare with the same rules at commit ba7c83c: 64,524 lines,
479 modules, 1,082 lines with `Any`, 123 repeated names. The simulator is not part of the product and is not counted.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.figures import figure, noted, skipped

ROOT: Final = Path(__file__).resolve().parent.parent
NOT_COUNTED: Final = "simulation"  # a folder of the package while it stands there, and beside the product afterwards
LONG: Final = 500  # lines: worth a look, and nothing more
CLASS_OR_ALIAS: Final = re.compile(r"[A-Z]\w*[a-z]\w*$")  # State, but neither TIMEOUT nor _State
VAGUE: Final = re.compile(r"\b(whoever|nobody|somebody|what is)\b", re.IGNORECASE)
JOURNEY: Final = re.compile(r"^## (.+)$", re.MULTILINE)
MODULE_LINK: Final = re.compile(r"\]\([./]*src/holdfast/([\w/]+\.py)\)")
# A page of CONTRIBUTING.md that shows a change: "### Add an operation", then a block ```python title="src/…" for each file.
EXAMPLE: Final = re.compile(r"^#+ Add an? (\w+)$", re.MULTILINE)
NEXT_CHAPTER: Final = re.compile(r"^## ", re.MULTILINE)
TITLED: Final = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)

GOALS: Final = {"lines": 55_000, "modules": 380, "any": 541, "repeated-names": 61}
FILES_GOALS: Final = {"operation": 2, "field": 4, "CA": 2, "channel": 2}


# ── counting ──


def modules(package: Path) -> list[Path]:
    """The Python files of the package, `__init__.py` included, the simulator left out."""
    return [path for path in sorted(package.rglob("*.py")) if not _simulated(path.relative_to(package).as_posix())]


def lines(package: Path) -> int:
    """All lines of Python and SQL, blank lines and comments included."""
    return sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in (*modules(package), *package.rglob("*.sql"))
    )


def any_lines(source: str) -> int:
    """Lines of code with the name `Any`, imports included; a comment or a text that says "Any" does not count."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.NAME and token.string == "Any"})


def names(source: str) -> Iterator[str]:
    """Public classes and aliases that a module defines at its top level, in the spelling of a class."""
    for node in ast.parse(source).body:
        for name in _defined(node):
            if CLASS_OR_ALIAS.match(name):
                yield name


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def repeated(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that more than one module defines, with these modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for name in dict.fromkeys(names(source)):
            places[name].append(module)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def vague_percent(texts: Iterable[str]) -> float:
    """How many docstrings in a hundred say whoever, nobody, somebody or "what is" in place of a subject."""
    found = [bool(VAGUE.search(text)) for text in texts]
    return 100 * sum(found) / max(len(found), 1)


def journeys(walkthrough: str) -> dict[str, list[str]]:
    """The modules that each section of the walkthrough links to."""
    _, *parts = JOURNEY.split(walkthrough)
    walks = {title: set(MODULE_LINK.findall(text)) for title, text in zip(parts[::2], parts[1::2], strict=True)}
    product = {title: sorted(each for each in walked if not _simulated(each)) for title, walked in walks.items()}
    return {title: walked for title, walked in product.items() if walked}


def _simulated(path: str) -> bool:
    return NOT_COUNTED in Path(path).parts


def examples(contributing: str) -> dict[str, dict[str, str]]:
    """The changes that CONTRIBUTING.md shows: for each kind of change, the files it touches and what they are given.

    A test carries them out, so the number of files that `make shape` prints is the number that suffices.
    """
    _, *parts = EXAMPLE.split(contributing)
    sections = (NEXT_CHAPTER.split(part)[0] for part in parts[1::2])
    return {what: dict(TITLED.findall(section)) for what, section in zip(parts[::2], sections, strict=True)}


def pairs(output: str) -> int | None:
    """How many pairs of alike places `duplicates` counted; None if its answer cannot be read."""
    if output.startswith("no duplicates"):
        return 0
    found = re.match(r"(\d+) pairs? of places", output)
    return int(found.group(1)) if found else None


# ── printing ──


def at_most(name: str, value: int, unit: str, goal: int) -> None:
    figure(name, value, unit, goal, value <= goal)


def shape(root: Path) -> None:
    package = root / "src" / "holdfast"
    sources = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in modules(package)}
    twice = repeated(sources)
    at_most("source-lines", lines(package), "lines", GOALS["lines"])
    at_most("modules", len(sources), "modules", GOALS["modules"])
    at_most("any", sum(map(any_lines, sources.values())), "lines", GOALS["any"])
    at_most("repeated-names", len(twice), "names", GOALS["repeated-names"])
    vague = vague_percent(text for source in sources.values() for text in docstrings(source))
    noted("vague-docstrings", vague, "percent")
    _files_touched(root)
    for title, walked in journeys((root / "docs" / "walkthrough.md").read_text(encoding="utf-8")).items():
        noted(f"modules-in-walk:{'-'.join(re.findall('[a-z]+', title.lower()))}", len(walked), "modules")
    _duplicates(root)
    _lists(sources, twice)


def _files_touched(root: Path) -> None:
    shown = examples((root / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    for what, goal in FILES_GOALS.items():
        name = f"files-to-add-{'an' if what[0] in 'aeio' else 'a'}-{what}"
        if shown.get(what):
            at_most(name, len(shown[what]), "files", goal)
        else:
            skipped(name, f'CONTRIBUTING.md has no example under "Add a(n) {what}"')


def _duplicates(root: Path) -> None:
    tool = shutil.which("duplicates")
    if tool is None:
        return skipped("alike-pairs", "the command duplicates is not installed")
    done = subprocess.run(
        [tool, "--repo", str(root / "src"), "--most", "200", "--seconds", "60"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = pairs(done.stdout)
    if found is None:
        return skipped("alike-pairs", "the answer of duplicates cannot be read")
    return noted("alike-pairs", found, "pairs")


def _lists(sources: Mapping[str, str], twice: Mapping[str, Sequence[str]]) -> None:
    long = {module: len(source.splitlines()) for module, source in sources.items()}
    print(f"\nmodules over {LONG} lines (to look at, not a rule):")
    for module, count in sorted(long.items(), key=lambda item: -item[1]):
        if count > LONG:
            print(f"  {count:5} {module}")
    print("\nnames defined more than once:")
    for name, places in sorted(twice.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"  {name}: {', '.join(places)}")


def main() -> int:
    shape(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
