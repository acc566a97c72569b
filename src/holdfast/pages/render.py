"""Templates: one environment, escaped and strict, with the words of pages as filters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context as TemplateContext
from markupsafe import Markup, escape

from holdfast.core import reasons
from holdfast.pages import states, words
from holdfast.pages.assets import Assets

_KNOWN: Final = frozenset(each.value for each in reasons.Reason)


def environment(assets: Assets) -> Environment:
    made = Environment(
        loader=PackageLoader("holdfast.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"asset": assets.address, "icon": _icons(assets), "STATES": states.STATES, "plural": words.counted}
    made.filters |= {
        "span": words.span,
        "coarse": words.coarse,
        "number": words.number,
        "exact": words.exact,
        "plain": words.plain,
        "sentence": words.sentence,
        "means": means,
        "iso": lambda at: at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "left": left,
        "ago": ago,
        "day": _day,
        "moment": _moment,
        "clock": lambda at: f"{at.astimezone(UTC):%H:%M}",
        "names_of": names_of,
    }
    made.tests["reason"] = lambda code: code in _KNOWN
    return made


def _icons(assets: Assets) -> object:
    sprite = assets.address("icons.svg")

    def icon(name: str, more: str = "") -> Markup:
        return Markup('<svg class="i {}" aria-hidden="true"><use href="{}#{}"/></svg>').format(more, sprite, name)

    return icon


def means(code: str) -> str:
    """The sentence of a reason code."""
    return reasons.MEANINGS[reasons.Reason(code)].sentence if code in _KNOWN else ""


def names_of(certificate: Mapping[str, Any]) -> list[str]:
    """The names of a certificate besides its own."""
    return [each for each in certificate["names"] if each != certificate["name"]]


def _time(at: datetime, kind: str, shown: str, units: int = 2) -> Markup:
    exact, machine = words.exact(at), at.astimezone(UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}" title="{}" data-{}="{}">{}</time>').format(machine, exact, kind, units, shown)


@pass_context
def left(context: TemplateContext, at: datetime, units: int = 2) -> Markup:
    """A countdown; the browser goes on with it by the server's clock."""
    rest: timedelta = at - context["now"]
    return _time(at, "left", words.span(rest, units) if rest > timedelta(0) else "due", units)


@pass_context
def ago(context: TemplateContext, at: datetime) -> Markup:
    return _time(at, "ago", words.span(context["now"] - at))


@pass_context
def _day(context: TemplateContext, at: datetime) -> Markup:
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat(), words.exact(at), words.day(at, context["now"])
    )


@pass_context
def _moment(context: TemplateContext, at: datetime) -> Markup:
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat(), words.exact(at), words.moment(at, context["now"])
    )


__all__ = ["environment", "escape"]
