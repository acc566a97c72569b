"""The program `holdfast-receive`: takes one bundle from its standard input, by the rules of a file of this machine.

It is meant as the forced command of an SSH key:

    restrict,command="/usr/local/bin/holdfast-receive /etc/holdfast/deployment.toml" ssh-ed25519 AAAA…
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Final

from holdfast.deployers import local_file, receiving
from holdfast.deployers.kind import DeployerParts, LocalRules
from holdfast.local_bundles import LocalBundles
from holdfast.network import SystemNet
from holdfast.world import HttpTransport, LocalFiles, SystemClock, SystemRandom

RULES: Final = "/etc/holdfast/deployment.toml"


def main() -> None:
    """What the client asked to be run (SSH_ORIGINAL_COMMAND) is never looked at."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else RULES)
    files = LocalFiles()
    try:
        rules = local_file.rules_of((files.read(path) or b"").decode())
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        sys.exit(78)  # EX_CONFIG
    call = sys.stdin.buffer.read(receiving.MOST + 1)
    print(json.dumps(asyncio.run(receiving.answer(call, _parts(files, rules)))))


def _parts(files: LocalFiles, rules: LocalRules) -> DeployerParts:
    return DeployerParts(
        target="here", credentials={}, transport=HttpTransport(), net=SystemNet(), files=files, bundles=LocalBundles(),
        clock=SystemClock(), random=SystemRandom(), local=rules,
    )  # fmt: skip


if __name__ == "__main__":
    main()
