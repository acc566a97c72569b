"""Name constraints (RFC 5280 §4.2.1.10): which names a CA may certify. Clients differ in obeying them, so we do."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from cryptography import x509

from holdfast.pki import names
from holdfast.pki.refused import NameRefused

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def outside(constraints: x509.NameConstraints | None, dns: Iterable[str], ips: Iterable[str]) -> list[str]:
    """The names that the constraints do not let through, with a reason each."""
    if constraints is None:
        return []
    wanted: list[str | names.IPAddress] = [*dns, *map(ipaddress.ip_address, ips)]
    found = []
    for name in wanted:
        permitted = _of_its_kind(constraints.permitted_subtrees, name)
        excluded = _of_its_kind(constraints.excluded_subtrees, name)
        if any(_covers(tree, name) or _reaches_into(name, tree) for tree in excluded):
            found.append(f"{name} is excluded by the CA's name constraints")
        elif permitted and not any(_covers(tree, name) for tree in permitted):
            found.append(f"{name} is not among the names that the CA may certify")
    return found


def _of_its_kind(
    trees: Iterable[x509.GeneralName] | None, name: str | names.IPAddress
) -> list[x509.DNSName | x509.IPAddress]:
    """A list of subtrees says nothing about names of another kind; IPv4 and IPv6 are one kind."""
    if isinstance(name, str):
        return [tree for tree in trees or () if isinstance(tree, x509.DNSName)]
    return [tree for tree in trees or () if isinstance(tree, x509.IPAddress)]


def _covers(tree: x509.DNSName | x509.IPAddress, name: str | names.IPAddress) -> bool:
    if isinstance(name, str):
        return isinstance(tree, x509.DNSName) and names.same_or_below(name, tree.value.lower().removeprefix("."))
    network = tree.value
    return isinstance(network, Network) and network.version == name.version and name in network


def _reaches_into(name: str | names.IPAddress, tree: x509.DNSName | x509.IPAddress) -> bool:
    """A wildcard stands for every label there: *.example is also the excluded secret.example."""
    return isinstance(tree, x509.DNSName) and name == f"*.{tree.value.lower().removeprefix('.').partition('.')[2]}"


def permitting(subtrees: Sequence[str]) -> x509.NameConstraints | None:
    """The constraints that permit these names and networks and, of DNS names and addresses, nothing else.

    A kind of name of which nothing is permitted is excluded as a whole: it would otherwise be free.
    """
    if not subtrees:
        return None
    permitted: list[x509.GeneralName] = [_subtree(text) for text in subtrees]
    versions = {tree.value.version for tree in permitted if isinstance(tree, x509.IPAddress)}
    everything = {4: ipaddress.ip_network("0.0.0.0/0"), 6: ipaddress.ip_network("::/0")}
    excluded: list[x509.GeneralName] = [
        x509.IPAddress(whole) for version, whole in everything.items() if version not in versions
    ]
    if not any(isinstance(tree, x509.DNSName) for tree in permitted):
        excluded.insert(0, x509.DNSName(""))
    return x509.NameConstraints(permitted, excluded or None)


def _subtree(text: str) -> x509.DNSName | x509.IPAddress:
    """`.example.internal` is accepted and means what `example.internal` does: itself and all below."""
    try:
        return x509.IPAddress(ipaddress.ip_network(text))
    except ValueError:
        pass
    if "/" in text:
        raise NameRefused(
            "subtree-malformed", f"{text} is not a network.", "Write it as 10.0.0.0/8, without host bits."
        )
    return x509.DNSName(names.dns_name(text.removeprefix("."), wildcard=False))
