"""`holdfast plan`, `apply`, `export`: certificates as a document, reviewed and applied, or written from what is."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from holdfast.cli.calling import ServerOption
from holdfast.cli.config import ConfigOption
from holdfast.cli.following import DryRunOption
from holdfast.cli.given import STDIN, content
from holdfast.cli.given import label as label_of
from holdfast.cli.showing import OutputOption
from holdfast.cli.terminal import Format, as_data, say, tame
from holdfast.errors import UserError

app = typer.Typer()
CHANGES, FAILED = 10, 1  # exit codes
FileOption = Annotated[
    Path, typer.Option("--file", "-f", help="The document (YAML), or a plan that was saved; '-' for stdin.")
]
PruneOption = Annotated[bool, typer.Option("--prune", help="Archive what is not in the document; nothing is revoked.")]
_SIGNS: Final = {"create": "+", "change": "~", "archive": "-"}
_SAVED: Final = "holdfast_plan"
_BEGIN: Final = "Begin with what there is: holdfast export > certificates.yaml"
_PATH: Final = re.compile(r"^([A-Za-z_]+(?:\[\d+\])?(?:\.[A-Za-z0-9_./-]+|\[\d+\])*): ")


class Source(NamedTuple):
    """What was given: a document, or a plan that was saved with it."""

    file: str
    tree: Any
    lines: Mapping[str, int]
    digest: str | None = None
    prune: bool = False


@app.command("plan")
def plan(
    file: FileOption,
    prune: PruneOption = False,
    out: Annotated[Path | None, typer.Option("--out", help="Save the plan: 'apply -f' does just that.")] = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Show what would be created, changed and archived. Exit code 10: something would; 0: nothing."""
    source = _source(file)
    planned = _ask(config, server, source, "desired.plan", document=source.tree, prune=prune or source.prune)
    if out is not None:
        _save(out, source, planned, prune=prune or source.prune)
    if not as_data(planned, output):
        _show(planned)
    if planned["steps"]:
        raise typer.Exit(CHANGES)


@app.command("apply")
def apply(
    file: FileOption,
    prune: PruneOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Make it so. Doing it again does nothing; what failed is told, and tried again by the next apply."""
    source = _source(file)
    wish = {"document": source.tree, "prune": prune or source.prune}
    if dry_run:
        _try(config, server, source, wish, output)
        return
    done: list[dict[str, Any]] = []
    expect = source.digest
    while True:
        failed = [each["name"] for each in done if each["error"]]
        answer = _ask(config, server, source, "desired.apply", **wish, expect=expect, skip=failed)
        done, expect = done + answer["done"], None
        if not answer["left"] or not answer["done"]:
            break
    if not as_data(done, output):
        _show_done(done)
    if any(each["error"] for each in done):
        raise typer.Exit(FAILED)


@app.command("export")
def export(
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="NAME=VALUE", help="Only those with this label; may be repeated."),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of documents, for editors.")] = False,
    config: ConfigOption = None,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Print the certificates as a document: planning with it changes nothing. Keys are not in it."""
    from holdfast.core import desired_fields, desired_yaml

    if schema:
        print(json.dumps(desired_fields.schema(), indent=2))
        return
    nothing = Source("", None, {})
    tree = _ask(config, server, nothing, "desired.export", scope=dict(map(label_of, label or ())))
    if output != "yaml" and as_data(tree, output):
        return
    print("# Certificates, as they are asked for. Change this, then: holdfast plan -f FILE; holdfast apply -f FILE")
    print("# What an entry leaves out is as it is by default, or as 'defaults:' say. --prune archives what is gone.")
    sys.stdout.write(desired_yaml.write(tree))


def _try(config: Path | None, server: str | None, source: Source, wish: Mapping[str, Any], output: Format) -> None:
    from holdfast.operations.desired import PlanIsStale

    planned = _ask(config, server, source, "desired.plan", **wish)
    if source.digest not in (None, planned["digest"]):
        raise PlanIsStale
    if not as_data(planned, output):
        _show(planned)
    say("Nothing was changed: this is what would be done.")


# ── Asking ──


def _source(file: Path) -> Source:
    from holdfast.core import desired_yaml

    name = "stdin" if str(file) == STDIN else str(file)
    try:
        found = desired_yaml.read(content(file, desired_yaml.MAX_SIZE, hint=_BEGIN))
    except desired_yaml.YamlRefused as refused:
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


def _ask(config: Path | None, server: str | None, source: Source, verb: str, **args: Any) -> Any:
    from holdfast.cli.carrying import carried_out

    try:
        return carried_out(config, server, verb, **args)
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


def _save(out: Path, source: Source, planned: Mapping[str, Any], *, prune: bool) -> None:
    from holdfast.world import LocalFiles

    saved = {_SAVED: 1, "digest": planned["digest"], "prune": prune, "document": source.tree}
    LocalFiles().write_private(out.resolve(), json.dumps(saved, indent=1).encode(), replace=True)
    say(f"Saved. Carry out exactly this: holdfast apply -f {out}")


# ── Telling ──


def _show(planned: Mapping[str, Any]) -> None:
    for step in planned["steps"]:
        print(_line(tame(step)))
    counts = Counter(step["action"] for step in planned["steps"])
    if planned["steps"]:
        parts = [f"{counts[action]} to {action}" for action in _SIGNS if counts[action]]
        say(f"\n{', '.join(parts)}; {planned['unchanged']} are as they should be.")
    else:
        say(f"Nothing to do: {planned['unchanged']} certificates are as they should be.")
    if planned["left_alone"]:
        say(f"{len(planned['left_alone'])} others are not in the document: with --prune they would be archived.")
    for name, orders in planned["orders"].items():
        left = planned["budgets"].get(name)
        budget = "" if left is None else f" ({left} within its limits now; the others wait their turn)"
        say(f"{name} will be asked for {orders} certificate{'' if orders == 1 else 's'}{budget}.")
    if planned["approvals"]:
        say(f"{planned['approvals']} of them need the approval of a second person: holdfast approvals ls")


def _line(step: Mapping[str, Any]) -> str:
    changes = [f"{each['field']}: {_shown(each['was'])} → {_shown(each['will_be'])}" for each in step["changes"]]
    told = "; ".join([*changes, step["reason"]] if step["issues"] or not changes else changes)
    return f"{_SIGNS[step['action']]} {step['action']:<8} {step['name']}  {told}"


def _shown(value: Any) -> str:
    if value is None:
        return "(default)"
    return ", ".join(map(str, value)) if isinstance(value, list) and value else json.dumps(value)


def _show_done(done: list[dict[str, Any]]) -> None:
    words = {"create": "created", "change": "changed", "archive": "archived"}
    for each in tame(done):
        print(f"{_SIGNS[each['action']]} {'FAILED' if each['error'] else words[each['action']]:<8} {each['name']}")
        if each["error"]:
            say(f"  {each['error']}\n  next: {each['hint']}")
    if not done:
        say("Nothing to do: all is as the document says.")
    elif any(each["issues"] for each in done):
        say("Certificates are being obtained. See how they do: holdfast status")
