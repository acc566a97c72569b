"""`holdfast plan`, `apply`, `export`: certificates as a document, reviewed and applied, or written from what is."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from holdfast.cli.calling import connected
from holdfast.cli.everywhere import FAILED, FINDINGS, Row, chosen
from holdfast.cli.input_files import STDIN, content
from holdfast.cli.input_files import label as label_of
from holdfast.cli.terminal import as_data, say, tame
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client

app = typer.Typer()
FileOption = Annotated[
    Path, typer.Option("--file", "-f", help="The document (YAML), or a plan that was saved; '-' for stdin.")
]
PruneOption = Annotated[
    bool,
    typer.Option(
        "--prune",
        help="Archive certificates, and delete unused targets, that it does not have.",
    ),
]
_SIGNS: Final = {"create": "+", "change": "~", "archive": "-", "delete": "-"}
_SAVED: Final = "holdfast_plan"
_BEGIN: Final = "Begin with what there is: holdfast export > certificates.yaml"
_PATH: Final = re.compile(r"^([A-Za-z_]+(?:\[\d+\])?(?:\.[A-Za-z0-9_./-]+|\[\d+\])*): ")


class Source(NamedTuple):
    """The file that was given: a document, or a plan that was saved with its document."""

    file: str
    tree: Any
    lines: Mapping[str, int]
    digest: str | None = None
    prune: bool = False


@app.command("plan")
def plan(
    file: FileOption,
    prune: PruneOption = False,
    out: Annotated[Path | None, typer.Option("--out", help="Save the plan in this file, for 'apply -f'.")] = None,
) -> None:
    """Show which certificates and targets a document would create, change and archive. Exit code 10: some; 0: none."""
    source = _source(file)
    wish = {"document": source.tree, "prune": prune or source.prune}
    with connected(offline=True) as client:
        planned = _asked(lambda: client.post("/documents/plan", wish), source)
    if out is not None:
        _save(out, source, planned, prune=prune or source.prune)
    if not as_data(planned):
        _show(planned)
    if planned["steps"]:
        raise typer.Exit(FINDINGS)


@app.command("apply")
def apply(
    file: FileOption,
    prune: PruneOption = False,
) -> None:
    """Create, change and archive certificates and targets as the document says. Repeat it to retry what failed."""
    source = _source(file)
    wish = {"document": source.tree, "prune": prune or source.prune}
    with connected(offline=True) as client:
        if chosen().dry_run:
            _try(client, source, wish)
            return
        done = _apply(client, source, wish)
    if not as_data(done):
        _show_done(done)
    if any(each["error"] for each in done):
        raise typer.Exit(FAILED)


def _apply(client: Client, source: Source, wish: Row) -> list[dict[str, object]]:
    done: list[dict[str, Any]] = []
    expect = source.digest
    while True:
        given = {**wish, "expect": expect, "skip": [_name(each) for each in done if each["error"]]}
        answer = _asked(lambda given=given: client.post("/documents/apply", given), source)  # type: ignore[misc]
        done, expect = done + answer["done"], None
        if not answer["left"] or not answer["done"]:
            return done


@app.command("export")
def export(
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="NAME=VALUE", help="Only those with this label; may be repeated."),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of documents, for editors.")] = False,
) -> None:
    """Print certificates and targets as a document for plan and apply. It has no keys and no credentials."""
    from holdfast.core.documents import schema as schemas
    from holdfast.core.documents import yaml_text

    if schema:
        print(json.dumps(schemas.schema(), indent=2))
        return
    for each in label or ():
        label_of(each)
    with connected(offline=True) as client:
        tree = client.get("/documents", label=label or [])
    if chosen().output != "yaml" and as_data(tree):
        return
    print("# What is asked for here. Change this, then: holdfast plan -f FILE; holdfast apply -f FILE")
    print("# What an entry leaves out is as it is by default, or as 'defaults:' say. --prune archives what is gone.")
    sys.stdout.write(yaml_text.write(tree))


def _try(client: Client, source: Source, wish: Row) -> None:
    from holdfast.operations.certificates.documents import PlanIsStale

    planned = _asked(lambda: client.post("/documents/plan", wish), source)
    if source.digest not in (None, planned["digest"]):
        raise PlanIsStale
    if not as_data(planned):
        _show(planned)
    say("Nothing was changed: this is what would be done.")


# ── Asking ──


def _source(file: Path) -> Source:
    from holdfast.core.documents import yaml_text

    name = "stdin" if str(file) == STDIN else str(file)
    try:
        found = yaml_text.read(content(file, yaml_text.MAX_SIZE, hint=_BEGIN))
    except yaml_text.YamlRefused as refused:
        raise Unusable(f"{name}: {refused}", refused.hint) from None
    tree = found.tree
    if isinstance(tree, dict) and _SAVED in tree:
        return Source(name, tree.get("document"), {}, str(tree.get("digest")), bool(tree.get("prune")))
    return Source(name, tree, found.lines)


class Unusable(UserError):
    code = "document-refused"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


def _asked(ask: Callable[[], Any], source: Source) -> Any:
    """The answer. Errors in the document get the numbers of its lines."""
    try:
        return ask()
    except UserError as error:
        if error.code != "document-refused":
            raise
        raise Unusable(_with_lines(str(error), source), error.hint) from None


def _with_lines(text: str, source: Source) -> str:
    """Each complaint with the line that it is about, as editors and people look for it."""
    return "\n".join(_with_line(each, source) for each in text.splitlines())


def _with_line(complaint: str, source: Source) -> str:
    match = _PATH.match(complaint)
    path = match[1] if match else ""
    while path and path not in source.lines:
        path = re.sub(r"(\.[^.\[]+|\[\d+\]|^[^.\[]+)$", "", path)
    return f"{source.file}:{source.lines[path]}: {complaint}" if path else complaint


def _save(out: Path, source: Source, planned: Row, *, prune: bool) -> None:
    from holdfast.world import LocalFiles

    saved = {_SAVED: 1, "digest": planned["digest"], "prune": prune, "document": source.tree}
    LocalFiles().write_private(out.resolve(), json.dumps(saved, indent=1).encode(), replace=True)
    say(f"Saved. Carry out exactly this: holdfast apply -f {out}")


# ── Telling ──


def _show(planned: Row) -> None:
    for step in planned["steps"]:
        print(_line(tame(step)))
    counts = Counter(step["action"] for step in planned["steps"])
    if planned["steps"]:
        parts = [f"{counts[action]} to {action}" for action in _SIGNS if counts[action]]
        say(f"\n{', '.join(parts)}; {planned['unchanged'] + planned['targets_unchanged']} are as they should be.")
    else:
        targets = f" and {planned['targets_unchanged']} targets" if planned["targets_unchanged"] else ""
        say(f"Nothing to do: {planned['unchanged']} certificates{targets} are as they should be.")
    if planned["left_alone"]:
        say(f"{len(planned['left_alone'])} others are not in the document: with --prune they would be archived.")
    if planned["targets_left_alone"]:
        say(f"Targets that are not in the document stay: {', '.join(planned['targets_left_alone'])}.")
    for name, orders in planned["orders"].items():
        left = planned["budgets"].get(name)
        budget = "" if left is None else f" ({left} within its limits now; the others wait their turn)"
        say(f"{name} will be asked for {orders} certificate{'' if orders == 1 else 's'}{budget}.")
    if planned["approvals"]:
        say(f"{planned['approvals']} of them need the approval of a second person: holdfast approvals ls")


def _line(step: Row) -> str:
    changes = [f"{each['field']}: {_shown(each['was'])} → {_shown(each['will_be'])}" for each in step["changes"]]
    told = "; ".join([*changes, step["reason"]] if step["issues"] or not changes else changes)
    return f"{_SIGNS[step['action']]} {step['action']:<8} {_name(step)}  {told}"


def _name(step: Row) -> str:
    return str(step["name"]) if step["what"] == "certificate" else f"target {step['name']}"


def _shown(value: object) -> str:
    if value is None:
        return "(default)"
    return ", ".join(map(str, value)) if isinstance(value, list) and value else json.dumps(value)


def _show_done(done: list[dict[str, object]]) -> None:
    words = {"create": "created", "change": "changed", "archive": "archived", "delete": "deleted"}
    for each in tame(done):
        print(f"{_SIGNS[each['action']]} {'FAILED' if each['error'] else words[each['action']]:<8} {_name(each)}")
        if each["error"]:
            say(f"  {each['error']}\n  next: {each['hint']}")
    if not done:
        say("Nothing to do: all is as the document says.")
    elif any(each["issues"] for each in done):
        say("Certificates are being obtained. See how they do: holdfast status")
