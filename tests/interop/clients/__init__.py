"""The clients, one file each; this is the table that `make interop` goes through."""

from typing import Final

from tests.interop.clients import (
    acme_sh,
    acme_tiny,
    apache,
    caddy,
    certbot,
    dehydrated,
    lego,
    npm_acme_client,
    python_acme,
    traefik,
    uacme,
)
from tests.interop.site import Client

CLIENTS: Final[tuple[Client, ...]] = (
    certbot.CLIENT,
    lego.CLIENT,
    acme_sh.CLIENT,
    dehydrated.CLIENT,
    uacme.CLIENT,
    acme_tiny.CLIENT,
    caddy.CLIENT,
    traefik.CLIENT,
    apache.CLIENT,
    npm_acme_client.CLIENT,
    python_acme.CLIENT,
)
