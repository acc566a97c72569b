"""From the settings to what holds for every CA of this installation."""

from __future__ import annotations

from datetime import timedelta

from holdfast.config import Settings
from holdfast.core.ca import Policy, Rate


def policy(settings: Settings, *, acme_port: int, publish_port: int) -> Policy:
    """The ports are those really taken: addresses that nobody set are made of them."""
    acme = settings.acme
    return Policy(
        base_url=acme.base_url or f"https://localhost:{acme_port}",
        publish_url=acme.publish_url or f"http://127.0.0.1:{publish_port}",
        order_for=acme.order_lifetime,
        authz_for=acme.authz_lifetime,
        tries=acme.validation_tries,
        uncollected_after=acme.uncollected_after,
        pause_after=acme.pause_after,
        accounts_per_address=Rate(count=acme.accounts_per_address, span=timedelta(hours=3)),
        orders_per_account=Rate(count=acme.orders_per_account, span=timedelta(hours=3)),
        orders_per_identifier=Rate(count=acme.orders_per_identifier, span=timedelta(days=1)),
        failures_per_identifier=Rate(count=acme.failures_per_identifier, span=timedelta(hours=1)),
        terms_url=acme.terms_url,
        website=acme.website,
        caa_identities=acme.caa_identities,
        chaos_nonces=acme.chaos_nonces,
        repeat_finalize=acme.repeat_finalize,
    )
