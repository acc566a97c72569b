"""`holdfast help TOPIC`: what is not about one command."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from holdfast.errors import UserError

app = typer.Typer()

TOPICS: Final = {
    "exit-codes": """\
Exit codes, the same for every command:

  0    done, or nothing to do
  1    failed
  2    wrong usage, or a setting that cannot be used
  3    still in progress when --timeout ended
  4    not authenticated, or not allowed
  5    conflict, or stale: it was changed meanwhile
  6    not found
  10   findings or changes: plan, status --check, doctor, audit verify
  130  interrupted by Ctrl-C; work that was begun goes on""",
    "output": """\
Data goes to stdout, talk to stderr; --quiet silences the talk, and never an error.

  -o table   for people, the default; -o wide has more columns, --columns NAME,PHASE just these
  -o json    as the API answers; -o jsonl one object a line; -o yaml
  -o name    names only, one a line, for other commands

Colours are used on a terminal only, and not with NO_COLOR. Times are relative and exact, in UTC.""",
    "contexts": """\
Commands speak to the Holdfast of this machine's data folder. To speak to another one:

  holdfast login https://holdfast.example.com --name prod     remembers it, with a token
  holdfast context ls, holdfast context use prod              chooses between several
  HOLDFAST_CONTEXT=prod holdfast ls                           for one command
  HOLDFAST_SERVER_URL and HOLDFAST_TOKEN                      without anything remembered""",
}


class NoTopic(UserError):
    status, code = 404, "no-such-topic"


@app.command("help")
def topic(
    about: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="A topic, a command, or a code.")] = None,
) -> None:
    """Explain exit-codes, output, contexts; or a reason such as NOT_DUE, or a problem such as stale."""
    from holdfast.cli import main

    if about in main.COMMANDS:
        main.app([about, "--help"], prog_name="holdfast")
    elif about is None:
        print("\n".join(f"holdfast help {name}" for name in TOPICS))
    elif about in TOPICS:
        print(TOPICS[about])
    elif meaning := _meaning(about):
        print(meaning)
    else:
        wrong = NoTopic(f"There is no topic {about!r:.40}.")
        wrong.hint = f"There are: {', '.join(TOPICS)}; and every command has --help."
        raise wrong
    sys.stdout.flush()


def _meaning(code: str) -> str:
    """Of a reason why something waits, or of a problem that a server told; empty if it is neither."""
    from holdfast.core.reasons import MEANINGS

    found = {str(reason): each for reason, each in MEANINGS.items()}.get(code.upper().replace("-", "_"))
    if found is not None:
        return f"{found.sentence} Who acts next: {found.acts_next}. More: docs/reasons.md"
    from holdfast.api.codes import SENTENCES, doc

    return f"{SENTENCES[code]} More: {doc(code)}" if code in SENTENCES else ""
