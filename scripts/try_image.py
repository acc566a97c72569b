"""Builds the image of deploy/Containerfile and checks its rules, or says why it cannot be built here. `make image`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

TOP: Final = Path(__file__).parent.parent
TAG: Final = "localhost/holdfast:trial"


def main() -> None:
    program = shutil.which("buildah")
    if program is None:
        sys.exit("image: not built: there is no buildah here. apt-get install buildah")
    build = [
        program,
        "build",
        "--isolation",
        "chroot",
        "-f",
        str(TOP / "deploy" / "Containerfile"),
        "-t",
        TAG,
        str(TOP),
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
        sys.exit(f"image: not built: {last}")
    shown = subprocess.run([program, "inspect", "--type", "image", TAG], capture_output=True, text=True, check=True)
    if wrong := problems(json.loads(shown.stdout)["OCIv1"]["config"]):
        sys.exit(f"image: {'; '.join(wrong)}")
    print(f"image: built as {TAG}; its user has no rights, and its entry point is no shell")


def problems(config: dict[str, Any]) -> list[str]:
    """What is wrong with an image that has this configuration."""
    rules = {
        "it does not run as 65532": config.get("User") == "65532:0",
        "its entry point is not holdfast itself": config.get("Entrypoint") == ["holdfast"],
        "it does not serve by default": config.get("Cmd") == ["serve"],
        "it is not stopped by SIGTERM": config.get("StopSignal") == "SIGTERM",
        "it does not say its version": bool(config.get("Labels", {}).get("org.opencontainers.image.version")),
        "it does not keep its data apart": "/data" in config.get("Volumes", {}),
    }
    return [wrong for wrong, holds in rules.items() if not holds]


if __name__ == "__main__":
    main()
