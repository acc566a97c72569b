"""A bench for each kind of deployer: a target of its own, what it holds, and ways to spoil it.

A kind adds a module here with a Bench, and a line in BENCHES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from holdfast.deployers.base import Deployer
from holdfast.secret import Secret
from tests.support.deployer_benches import (
    agent,
    aws_acm,
    azure_keyvault,
    f5,
    fetching,
    files,
    gcp_certificate_manager,
    haproxy,
    keystores,
    kubernetes,
    program,
    ssh,
    traefik,
    vault_kv,
)


class Bench(Protocol):
    secrets: tuple[str, ...]  # credentials that must be in no error

    async def deployer(self) -> Deployer:
        """A new one for the same target, as each claim makes one."""

    async def holds(self) -> tuple[str, Secret[bytes]]:
        """SHA-256 of the leaf, in hex, and the key in PEM, as the target itself has them."""

    async def go_away(self) -> bool:
        """Be unreachable from now on; False: it cannot be."""

    async def refuse(self) -> bool:
        """Refuse writes from now on; False: it has no way to."""

    async def come_back(self) -> None:
        """Be as before."""


BENCHES: Final[Mapping[str, Callable[[], AbstractAsyncContextManager[Bench]]]] = {
    "agent": agent.a_bench,
    "aws-acm": aws_acm.a_bench,
    "azure-keyvault": azure_keyvault.a_bench,
    "caddy": fetching.a_caddy_bench,
    "f5": f5.a_bench,
    "gcp-certificate-manager": gcp_certificate_manager.a_bench,
    "files": files.a_bench,
    "haproxy": haproxy.a_bench,
    "jks": keystores.a_jks_bench,
    "pkcs12": keystores.a_bench,
    "program": program.a_bench,
    "kubernetes": kubernetes.a_bench,
    "ssh": ssh.a_bench,
    "traefik": traefik.a_bench,
    "vault-kv": vault_kv.a_bench,
    "webhook": fetching.a_webhook_bench,
}
