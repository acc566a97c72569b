"""Create the virtual environment; on a bare Debian, say or do what is missing (its python3 comes without venv)."""

import importlib.util
import os
import shutil
import subprocess
import sys
import venv

MINIMUM = (3, 11)


def main(folder: str) -> int:
    if sys.version_info < MINIMUM:
        print(f"holdfast needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}.", file=sys.stderr)
        print("Name a newer one: make PYTHON=/path/to/python3.12 run", file=sys.stderr)
        return 1
    if importlib.util.find_spec("ensurepip") is None and not install_venv_package():
        print("This python3 cannot make virtual environments (no ensurepip).", file=sys.stderr)
        print("Install it and run make again:  sudo apt-get install python3-venv", file=sys.stderr)
        return 1
    venv.create(folder, with_pip=True, clear=True)
    return 0


def install_venv_package() -> bool:
    """As root on Debian we may install python3-venv ourselves; anyone else is told how."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    print("python3-venv is missing: installing it with apt-get", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "python3-venv"]):
        if subprocess.run([apt, *words], env=environment, check=False).returncode != 0:
            return False
    # ensurepip arrived after this interpreter started: begin again with the same words.
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
