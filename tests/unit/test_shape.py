"""The figures of `make shape`, counted on a package of three files."""

from pathlib import Path

from scripts import shape

STATE = '''"""Two states."""
from typing import Any
State = Any
LIMIT = 3
class _Hidden: ...
def whole() -> Any:
    """Somebody asks."""
    return "Any"  # Any
'''
OTHER = '''class State:
    """A state."""
class Other: ...
'''


def test_lines_are_those_of_python_and_sql_without_the_simulator(tmp_path: Path) -> None:
    for name, text in {"a.py": STATE, "sub/b.py": OTHER, "sub/c.sql": "x\ny\n", "simulation/d.py": STATE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [path.name for path in shape.modules(tmp_path)] == ["a.py", "b.py"]
    assert shape.lines(tmp_path) == 8 + 3 + 2


def test_any_is_counted_by_lines_of_code() -> None:
    assert shape.any_lines(STATE) == 3
    assert shape.any_lines("x: dict[Any, Any] = {}\n") == 1


def test_a_public_class_or_alias_of_two_modules_is_a_repeated_name() -> None:
    assert shape.repeated({"a": STATE, "b": OTHER, "c": "class Other: ...\nLIMIT = 4\nclass _Hidden: ...\n"}) == {
        "Other": ["b", "c"],
        "State": ["a", "b"],
    }


def test_docstrings_without_a_subject_are_counted_in_percent() -> None:
    texts = [text for source in (STATE, OTHER) for text in shape.docstrings(source)]
    assert texts == ["Two states.", "Somebody asks.", "A state."]
    assert round(shape.vague_percent(texts)) == 33


def test_a_journey_has_the_modules_that_its_section_links_to() -> None:
    text = """# Walks
## One job
[`a`](../src/holdfast/store/a.py), [`a`](../src/holdfast/store/a.py) and [b](../src/holdfast/b.py), [x](other.md)
## The simulator
[c](../src/holdfast/simulation/c.py)
## Words
"""
    assert shape.journeys(text) == {"One job": ["b.py", "store/a.py"]}


def test_an_example_is_read_with_its_files() -> None:
    text = """## Changes
### Add an operation
First:
```python title="src/a.py"
a = 1
```
Then:
```toml title="b.toml"
b = 2
```
### Add a field
```sh
make test
```
## More
```python title="src/c.py"
```
"""
    assert shape.examples(text) == {"operation": {"src/a.py": "a = 1\n", "b.toml": "b = 2\n"}, "field": {}}


def test_the_answer_of_duplicates_is_read() -> None:
    assert shape.pairs("266 pairs of places (493 files read), each\nD1 a ~ b\n") == 266
    assert shape.pairs("1 pair of places (2 files read)") == 1
    assert shape.pairs("no duplicates (3 files read)") == 0
    assert shape.pairs("usage: …") is None
