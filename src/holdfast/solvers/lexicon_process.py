"""The process that dns_lexicon.py starts: one change of one record, told on standard input, and one word back."""

from __future__ import annotations

import json
import logging
import sys
from typing import NamedTuple


class _Parts(NamedTuple):
    domain: str
    suffix: str


def _split(zone: str) -> _Parts:
    """The zone is known, and is not to be guessed from a list that would first be fetched."""
    return _Parts(*zone.split(".", 1))


def main() -> str:
    told = json.load(sys.stdin)
    try:
        import lexicon.client  # type: ignore[import-not-found, unused-ignore]
        import lexicon.config  # type: ignore[import-not-found, unused-ignore]
        import lexicon.exceptions  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return "missing"
    lexicon.client.tldextract.TLDExtract = lambda **_: _split
    settings = {
        "provider_name": told["provider"],
        "domain": told["zone"],
        "ttl": told["ttl"],
        told["provider"]: told["options"],
    }
    try:
        with lexicon.client.Client(lexicon.config.ConfigResolver().with_dict(settings)) as zone:
            if told["action"] == "add":
                zone.create_record("TXT", told["name"], told["value"])
            else:
                zone.delete_record(rtype="TXT", name=told["name"], content=told["value"])
    except lexicon.exceptions.ProviderNotAvailableError:
        return "unknown"
    except Exception as error:  # of any provider's making; its text may quote a credential
        return f"failed {type(error).__name__}"
    return "done"


if __name__ == "__main__":
    logging.disable()
    print(main())
