"""A network of our own: ports 53, 80 and 443 are free in it, every name is ours, and nothing leaves the machine."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

SIOCSIFFLAGS: Final = 0x8914  # netdevice(7)
IFF_UP: Final = 0x1
MARK: Final = "HOLDFAST_INTEROP_INSIDE"


def inside() -> bool:
    return MARK in os.environ


def enter(arguments: Sequence[str]) -> NoReturn:
    """Become this same program in new network, mount and process namespaces; whatever it starts ends with it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        raise SystemExit("interop needs unshare(1) of util-linux, for a network of its own.")
    command = [unshare, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        raise SystemExit("interop needs the right to make a network namespace: run it as root.")
    command += [sys.executable, "-m", "tests.interop", *arguments]
    os.execve(unshare, command, {**os.environ, MARK: "1"})


def settle(folder: Path) -> None:
    """Bring loopback up and make our DNS the only resolver."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        fcntl.ioctl(line, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP, b""))
    resolvers = folder / "resolv.conf"
    resolvers.write_text("nameserver 127.0.0.1\n")
    subprocess.run(["mount", "--bind", str(resolvers), "/etc/resolv.conf"], check=True)
