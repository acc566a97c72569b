"""Write docs/reference/ from the code: settings, state machines, metrics, named points, commands, the API, who may do what. `make docs` runs it.

tests/test_docs.py fails when a page differs from what this would write.
"""

import json
import sys
from pathlib import Path

from holdfast import plugins
from holdfast.config import describe, load
from holdfast.ports import POINTS
from holdfast.telemetry import Metrics
from scripts.access_page import access
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
        "about certificates, CAs, jobs and notifications is counted by the database over the whole installation, so that every replica",
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


def kinds() -> str:
    if unusable := plugins.broken():  # their sections would be missing, without a word about it
        raise RuntimeError("Install the product anew (pip install -e .): " + " ".join(map(str, unusable)))
    lines = [
        "# Kinds of issuers, channels and solvers",
        "",
        "Those that come with Holdfast; packages may add others ([how](../guides/plugins.md)). A setting that is required must be given.",
    ]
    for title, group in (("Issuers", plugins.ISSUERS), ("Channels", plugins.NOTIFIERS), ("Solvers", plugins.SOLVERS)):
        lines += ["", f"## {title}"]
        for name, kind in sorted(plugins.kinds(group).items()):
            lines += ["", f"### {name}", "", kind.summary, ""]
            if kind.presets:
                lines += [f"Presets: {', '.join(f'`{each}`' for each in kind.presets)}.", ""]
            lines += _settings_of(kind)
            lines += [
                f"- credential `{each.name}`{'' if each.required else ' (optional)'}: {each.summary}"
                for each in kind.credentials
            ]
    return "\n".join(lines) + "\n"


def _settings_of(kind: plugins.AnyKind) -> list[str]:
    rows = []
    for name, field in kind.settings.model_fields.items():
        found = None if field.is_required() else field.get_default(call_default_factory=True)
        default = f"`{json.dumps(found, ensure_ascii=False)}`" if found or found is False else ""
        default = "required" if field.is_required() else default
        rows.append(f"| `{field.alias or name}` | {default} | {field.description} |")
    return ["| setting | default | what it is |", "|---|---|---|", *rows, ""] if rows else []


PAGES = {
    "settings.md": settings,
    "machines.md": machines,
    "metrics.md": metrics,
    "points.md": points,
    "commands.md": commands,
    "kinds.md": kinds,
}
PAGES |= {"api.md": api, "access.md": access, "problems.md": problems}


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (FOLDER / name).write_text(MADE + write(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
