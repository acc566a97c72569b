"""What events, audit entries and jobs are about, by the names that people know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.store.tx import Tx, value_list

_BY_PREFIX: Final[Mapping[str, str]] = {
    "certificate_": "SELECT id, name FROM certificates WHERE id IN ({})",
    "issuance_": """SELECT issuances.id, certificates.name FROM issuances
                      JOIN certificates ON certificates.id = issuances.certificate WHERE issuances.id IN ({})""",
    "version_": """SELECT versions.id, certificates.name FROM certificate_versions AS versions
                     JOIN certificates ON certificates.id = versions.certificate WHERE versions.id IN ({})""",
    "person_": "SELECT id, name FROM people WHERE id IN ({})",
}
_ISSUED: Final = "SELECT id, identifiers FROM ca_certificates WHERE id IN ({})"


def names_of(tx: Tx, ids: Iterable[str]) -> dict[str, str]:
    """The names of those that have one, by id; an issued certificate is called by its first name."""
    wanted = sorted(set(ids))
    named = {row["id"]: row["name"] for prefix, sql in _BY_PREFIX.items() for row in _rows(tx, sql, prefix, wanted)}
    issued = {row["id"]: json.loads(row["identifiers"])[0] for row in _rows(tx, _ISSUED, "cert_", wanted)}
    return named | {each: value for each, (_, value) in issued.items()}


def _rows(tx: Tx, sql: str, prefix: str, ids: Iterable[str]) -> list[Mapping[str, str]]:
    ours = [(each,) for each in ids if each.startswith(prefix)]
    if not ours:
        return []
    text, values = value_list(ours)
    return [*tx.rows(sql.format(text), **values)]
