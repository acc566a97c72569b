"""A parameter that a route does not know is refused: a filter that is misspelt would select everything."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError


def check(request: Request) -> None:
    """RequestValidationError if the query has a name that this route does not document."""
    if not request.query_params:
        return
    known = frozenset(_known(request.scope["route"].dependant))
    strange = [name for name in request.query_params if name not in known]
    if strange:
        raise RequestValidationError([_mistake(name, known) for name in strange])


def _known(dependant: Dependant) -> Iterator[str]:
    yield from (each.alias for each in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _known(inner)


def _mistake(name: str, known: frozenset[str]) -> dict[str, Any]:
    near = get_close_matches(name, sorted(known), n=1, cutoff=0.0)
    return {"type": "unknown_parameter", "loc": ("query", name[:100]), "ctx": {"near": near[0] if near else ""}}
