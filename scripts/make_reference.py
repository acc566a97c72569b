"""Write docs/reference/ from the code: settings, state machines, metrics, named points, commands, the API. `make docs` runs it.

tests/test_docs.py fails when a page differs from what this would write.
"""

import sys
from pathlib import Path

from holdfast.config import describe, load
from holdfast.ports import POINTS
from holdfast.telemetry import Metrics
from scripts.api_page import api, problems
from scripts.commands_page import commands
from scripts.machines_page import machines

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
MADE = "<!-- Written by scripts/make_reference.py; change the code, then run: make docs -->\n\n"


def settings() -> str:
    lines = [
        "# Settings",
        "",
        "Read once at start from a TOML file (`holdfast serve --config FILE`) and from the environment, which wins.",
        "An unknown key or `HOLDFAST_*` variable is refused, with a suggestion. Secrets come only from the environment or",
        "from a file named by the `…_file` key, never from the TOML. `holdfast config show` prints what is in force.",
        "",
        "| setting | variable | default | what it does |",
        "|---|---|---|---|",
    ]
    for row in describe(load(None, {}, Path.read_bytes)):
        default = (
            ""
            if row.default in (None, "", [])
            else f"`{str(row.default).lower() if row.default is False else row.default}`"
        )
        lines.append(f"| `{row.key}` | `{row.variable}` | {default} | {row.doc} |")
    return "\n".join(lines) + "\n"


def metrics() -> str:
    lines = [
        "# Metrics",
        "",
        "At `/metrics`, in Prometheus' text format. Only counters end in `_total`; times and spans are in seconds. What is said",
        "about certificates, CAs, jobs and notices is counted by the database over the whole installation, so that every replica",
        "says the same: take `max`, not `sum`. It is read at most every `metrics.interval`, and more seldom where reading it takes",
        "long. Series of single certificates are capped by `metrics.certificate_series`: the failing ones and those that end first.",
        "",
        "| name | type | labels | what it says |",
        "|---|---|---|---|",
    ]
    known = vars(Metrics())
    labels = {each._name: each._labelnames for each in known.values() if hasattr(each, "_labelnames")}
    for family in sorted(known["registry"].collect(), key=lambda family: family.name):
        suffix = "_total" if family.type == "counter" else ""
        shown = ", ".join(f"`{label}`" for label in labels.get(family.name, ()))
        lines.append(f"| `{family.name}{suffix}` | {family.type} | {shown} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def points() -> str:
    lines = [
        "# Named points",
        "",
        "Places where a crash is interesting. `make kill` ends a real process at each of them, `make sim` a simulated one.",
        "",
        *(f"- `{name}`" for name in sorted(POINTS)),
    ]
    return "\n".join(lines) + "\n"


PAGES = {
    "settings.md": settings,
    "machines.md": machines,
    "metrics.md": metrics,
    "points.md": points,
    "commands.md": commands,
}
PAGES |= {"api.md": api, "problems.md": problems}


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (FOLDER / name).write_text(MADE + write(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
