"""One client through all that it can do, and what came of each step."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.interop.checks import Unfit, check, check_revoked, leaf
from tests.interop.packages import Tool
from tests.interop.servers import Server
from tests.interop.site import ISSUE, RENEW, REVOKE, SCENARIOS, WILDCARD, Client, ClientFailed, Site

LAST_WORDS: Final = 9  # lines of output in which a client says why it gave up
NEEDS_A_CERTIFICATE: Final = (RENEW, REVOKE)
Verdict = Literal["ok", "FAILED", "limit", "skipped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one scenario of one client."""

    client: str
    scenario: str
    verdict: Verdict
    nonces: int  # the percentage that was refused
    seconds: float = 0.0
    detail: str = ""
    exchanges: str = ""  # with the server, where they were recorded


def trial(client: Client, folder: Path, tool: Tool, server: Server, nonces: int) -> Iterator[Outcome]:
    """Try the client's scenarios in their order; what it cannot do is left out."""
    folder.mkdir()
    site = Site(client.name.replace(".", "-"), folder, tool, server)
    chain = ""  # of the certificate that is renewed, then revoked
    for scenario in (each for each in SCENARIOS if each in client.does):
        if scenario in NEEDS_A_CERTIFICATE and not chain:
            yield Outcome(client.name, scenario, "skipped", nonces, detail="there is no certificate to do it with")
            continue
        began, said = time.monotonic(), len(exchanges(server))
        try:
            chain = step(client, site, scenario, chain)
            yield Outcome(client.name, scenario, "ok", nonces, time.monotonic() - began)
        except (ClientFailed, Unfit, OSError) as error:
            detail = f"{type(error).__name__}: {error}"
            judged = verdict(client, detail, nonces)
            yield Outcome(
                client.name, scenario, judged, nonces, time.monotonic() - began, detail, exchanges(server)[said:]
            )


def step(client: Client, site: Site, scenario: str, chain: str) -> str:
    """Have it done and look at the result; the certificate that is held from here on."""
    name = site.name(WILDCARD if scenario == WILDCARD else scenario)
    received = client.does[scenario](site)
    if received is None:
        check_revoked(chain, site.server, site.folder)
        return chain
    names = [name, f"*.{name}"] if scenario == WILDCARD else [site.name(ISSUE) if scenario == RENEW else name]
    check(received, names, site.server, site.folder)
    if scenario == RENEW and leaf(received).serial_number == leaf(chain).serial_number:
        raise Unfit("the renewed certificate has the serial of the old one")
    return received if scenario in (ISSUE, RENEW) else chain


def exchanges(server: Server) -> str:
    return server.exchanges.read_text() if server.exchanges and server.exchanges.exists() else ""


def verdict(client: Client, detail: str, nonces: int) -> Verdict:
    """A client that gives up on badNonce has reached its own limit; only said of those of which we know it."""
    last_words = " ".join(detail.splitlines()[-LAST_WORDS:]).lower()
    return "limit" if nonces and client.nonces and "nonce" in last_words else "FAILED"
