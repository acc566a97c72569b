"""Which path is which resource, and who may ask for it how: one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.acme import accounts, authzs, certificates, directory, orders
from holdfast.acme.call import Handler
from holdfast.acme.gate import NAME, Signer


@dataclass(frozen=True, slots=True)
class Route:
    handler: Handler
    signer: Signer
    public: bool = False  # GET and HEAD, by anyone
    pages: bool = False  # its URLs may have a query
    indexed: bool = True  # its answers link to the directory
    mints: bool = False  # every answer has a nonce, not only those to POST

    @property
    def allow(self) -> bytes:
        return b", ".join([b"GET, HEAD"] * self.public + [b"POST"] * (self.signer != "nobody"))


# By the kind of resource and what follows it in the path: "" stands for an id.
ROUTES: Final[dict[tuple[str, ...], Route]] = {
    ("directory",): Route(directory.directory, "account", public=True, indexed=False),
    ("new-nonce",): Route(directory.new_nonce, "account", public=True, mints=True),
    ("new-account",): Route(accounts.new_account, "key"),
    ("account", ""): Route(accounts.account, "account"),
    ("account", "", "orders"): Route(accounts.orders, "account", pages=True),
    ("key-change",): Route(accounts.key_change, "account"),
    ("new-order",): Route(orders.new_order, "account"),
    ("order", ""): Route(orders.order, "account"),
    ("order", "", "finalize"): Route(orders.finalize, "account"),
    ("authz", ""): Route(authzs.authz, "account"),
    ("challenge", ""): Route(authzs.challenge, "account"),
    ("certificate", ""): Route(certificates.certificate, "account"),
    ("certificate", "", "*"): Route(certificates.certificate, "account"),
    ("revoke-cert",): Route(certificates.revoke_cert, "either"),
    ("renewal-info", ""): Route(certificates.renewal_info, "nobody", public=True),
}


def find(parts: list[str]) -> tuple[Route, tuple[str, ...]] | None:
    """The route of a path below a CA's root, and its arguments."""
    match parts:
        case [kind]:
            route = ROUTES.get((kind,))
        case [kind, name]:
            route = ROUTES.get((kind, "")) if NAME.fullmatch(name) else None
        case [kind, name, last]:
            route = ROUTES.get((kind, "", last), ROUTES.get((kind, "", "*"))) if NAME.fullmatch(name) else None
        case _:
            route = None
    return None if route is None else (route, tuple(parts[1:]))
