"""Documents as a JSON Schema, for editors."""

from __future__ import annotations

from holdfast.core.documents import targets
from holdfast.core.documents.fields import KEYS, LABELS_SCHEMA, NO_DEFAULT, schema_of


def schema() -> dict[str, object]:
    """For editors (JSON Schema, 2020-12): what may be written where, and what it means."""
    entry = {name: schema_of(each) for name, each in KEYS.items()}
    default = {name: each for name, each in entry.items() if name not in NO_DEFAULT}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "certificates.yaml of Holdfast",
        "type": "object",
        "additionalProperties": False,
        "required": ["certificates"],
        "properties": {
            "version": {"const": 1},
            "scope": {**LABELS_SCHEMA, "description": "The document speaks of what has these labels only."},
            "defaults": {
                "type": "array",
                "description": "What holds where an entry does not say; the last block that fits wins.",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"when": {**LABELS_SCHEMA, "description": "Labels to fit; none: always."}, **default},
                },
            },
            "targets": targets.schema(),
            "certificates": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["names"],
                    "properties": entry,
                },
            },
        },
    }
