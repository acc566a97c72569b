"""A first start that is killed between any two commits: the next one has one CA, a list, and a certificate to serve."""

import json
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from cryptography import x509
from tests.faults.conftest import Serve
from tests.support.grounds import Ground, PostgresGround, look
from tests.support.processes import Served, environment
from tests.support.reaper import PATIENCE, until

from holdfast.store import journal
from holdfast.store.own_ca import cas

# The commits of a first start: the schema, the key, the CA; then the engine and the order of the listener together.
# They are the same on both stores, so each is killed on one of them.
COMMITS = [("sqlite", 3), ("postgresql", 4), ("sqlite", 5), ("postgresql", 6), ("sqlite", 7), ("postgresql", 8)]
COMMITS += [("sqlite", 10), ("postgresql", 12), ("sqlite", 14)]


def settings(place: Ground) -> dict[str, str]:
    url = place.store if isinstance(place, PostgresGround) else f"sqlite:///{place.store}"
    return {"STORE_URL": url, "ENGINE_LEASE_TTL": "3s"}


@pytest.mark.parametrize(("place", "commit"), COMMITS, indirect=["place"])
def test_the_start_after_a_first_start_that_was_killed_serves(place: Ground, serve: Serve, commit: int) -> None:
    command = [sys.executable, "-m", "tests.support.mortal", "store.after-commit", str(commit)]
    env = environment(place.folder, settings(place))
    victim = subprocess.run(command, env=env, capture_output=True, timeout=2 * PATIENCE)
    assert victim.returncode == -signal.SIGKILL, victim.stderr.decode()[-2000:]
    served = serve(place.folder, **settings(place))
    served.wait_for_event("acme.serving")
    root = fetched(f"{served.url}/pki/default/root.pem")
    assert directory(served, root)["newOrder"].endswith("/acme/default/new-order")
    crl = x509.load_der_x509_crl(until_fetched(f"{served.url}/pki/default/0.crl"))
    issuer = x509.load_der_x509_certificate(fetched(f"{served.url}/pki/default/issuer.cer"))
    assert crl.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]
    assert served.stop() == 0
    assert [row.id for row in look(place, cas.everything)] == ["default"]
    assert look(place, journal.verify).ok


def fetched(url: str, context: ssl.SSLContext | None = None) -> bytes:
    with urlopen(url, timeout=PATIENCE, context=context) as answer:
        return bytes(answer.read())


def until_fetched(url: str) -> bytes:
    found: list[bytes] = []

    def there() -> bool:
        try:
            found[:] = [fetched(url)]
        except URLError:
            return False
        return True

    until(there, url, every=0.1)
    return found[0]


def directory(served: Served, root: bytes) -> dict[str, str]:
    url = served.wait_for_event("acme.serving")["url"]
    trust = ssl.create_default_context(cadata=root.decode())
    found: dict[str, str] = json.loads(fetched(f"{url}/acme/default/directory", trust))
    return found


def test_the_socket_and_the_folder_of_a_killed_server_are_taken_over(place: Ground, serve: Serve) -> None:
    for _ in range(2):
        served = serve(place.folder, **settings(place))
        served.wait_until_ready()
        served.process.send_signal(signal.SIGKILL)
        assert served.wait() == -signal.SIGKILL
    assert Path(place.folder / "holdfast.sock").exists()
