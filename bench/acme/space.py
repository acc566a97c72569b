"""A network of our own: ports 53 and 80 are free, our DNS is the system's, nothing can leave, and it ends with us."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # netdevice(7)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where names are resolved and http-01 is answered."""

    dns: int
    http: int


OWN = Ports(dns=53, http=80)  # Caddy dials port 80 always
SHARED = Ports(dns=5353, http=5002)  # without a network of our own, for the servers that can be told


def can_be_made() -> bool:
    """Tell whether this machine lets us have one: root, and the program for it."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode == 0


def enter(module: str, *words: str) -> None:
    """Start the module again in a new network, in place of this process."""
    os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, "-m", module, *words])


def furnish(folder: Path) -> None:
    """Make the new network usable: loopback up, and names resolved by ours, for servers that ask the system."""
    raise_loopback()
    resolver = folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\n")
    subprocess.run(["mount", "--bind", str(resolver), "/etc/resolv.conf"], check=True)  # seen by nobody else


def raise_loopback() -> None:
    """Switch 127.0.0.1 on: a new network begins with everything off."""
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
