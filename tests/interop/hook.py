"""What the clients run to publish a proof: the first argument says whose habits the others follow.

It stands alone: clients start it with an environment and a folder of their choice.
"""

import os
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

MANAGEMENT = "http://127.0.0.1:8055"


def text(path: str, name: str, value: str) -> None:
    """Set or clear a TXT record."""
    urllib.request.urlopen(f"{MANAGEMENT}{path}", data=f"{name} {value}\n".encode()).close()


def certbot(verb: str) -> None:
    text(f"/{verb}", f"_acme-challenge.{os.environ['CERTBOT_DOMAIN']}", os.environ["CERTBOT_VALIDATION"])


def lego(verb: str, name: str, value: str) -> None:
    text("/set" if verb == "present" else "/clear", name, value)


def dehydrated(verb: str, *words: str) -> None:
    path = {"deploy_challenge": "/set", "clean_challenge": "/clear"}.get(verb)
    if path is not None:  # it reports much else, which is no business of ours
        text(path, f"_acme-challenge.{words[0]}", words[2])


def uacme(verb: str, kind: str, name: str, token: str, proof: str) -> None:
    if kind != os.environ["INTEROP_CHALLENGE"]:
        sys.exit(1)  # it offers one challenge after the other until a hook takes one
    file = Path(os.environ["INTEROP_PROOFS"]) / token
    if kind == "dns-01":
        text("/set" if verb == "begin" else "/clear", f"_acme-challenge.{name}", proof)
    elif verb == "begin":
        file.write_text(proof)
    else:
        file.unlink()


HABITS: dict[str, Callable[..., None]] = {"certbot": certbot, "lego": lego, "dehydrated": dehydrated, "uacme": uacme}

if __name__ == "__main__":
    HABITS[sys.argv[1]](*sys.argv[2:])
