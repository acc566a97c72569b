"""The names that a certificate may carry: one spelling for each DNS name and each address, or a refusal.

Lower case and A-labels only (RFC 5280 §7.2, RFC 5890), so that two names are the same exactly if their text is. And
name constraints (RFC 5280 §4.2.1.10), which decide the names that a CA may certify.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

import idna
from cryptography import x509

from holdfast.pki.refused import NameRefused

MAX_NAME: Final = 253  # RFC 1035 §2.3.4: 255 octets on the wire
MAX_LABEL: Final = 63
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_IN_ADDRESSES: Final = re.compile(r"[][:]")  # an address that does not end in a number has one of these


def dns_name(text: str, *, wildcard: bool = True) -> str:
    """The one spelling of a DNS name, or NameRefused. A wildcard is the whole leftmost label (RFC 6125 §6.4.3)."""
    _check_characters(text)
    name = text.lower()
    if not name:
        raise NameRefused("name-empty", "A DNS name is empty.", "Write it out, or leave it out of the list.")
    if len(name) > MAX_NAME:
        problem = f"{_shown(name)} has {len(name)} characters; a name has at most {MAX_NAME}."
        raise NameRefused("name-too-long", problem, "Shorten it: DNS cannot carry it either.")
    if name.endswith("."):
        raise NameRefused("name-trailing-dot", f"{_shown(name)} ends with a dot.", "Write it without the dot.")
    base = name.removeprefix("*.")
    if base != name and not wildcard:
        problem = f"{_shown(name)} is a wildcard, which is not allowed here."
        raise NameRefused("name-wildcard", problem, "Name each host by itself.")
    if "*" in base:
        raise NameRefused(
            "name-wildcard", f"{_shown(name)} has a '*' that is not its whole first label.", "Write *.example.com."
        )
    if _is_address(base):
        raise _address_refused(base, name)
    for label in base.split("."):
        _check_label(label, name)
    return name


def _address_refused(base: str, name: str) -> NameRefused:
    try:
        ipaddress.ip_address(base.strip("[]"))
    except ValueError:
        problem = f"{_shown(name)} ends in a number like an address, and is none."
        hint = "An IPv4 address has four numbers from 0 to 255; a DNS name does not end in a number."
        return NameRefused("name-is-address", problem, hint)
    return NameRefused("name-is-address", f"{_shown(name)} is an address.", "Ask for it as an IP address.")


_NOTHING_ELSE: Final = "Type it anew, with letters, digits, hyphens and dots only."


def _check_characters(text: str) -> None:
    """Name the bad character in words: a name with a hidden character looks like another one when it is printed."""
    if text.isascii() and text.isprintable() and " " not in text:
        return
    for char in text:
        category = unicodedata.category(char)
        if category in {"Cc", "Cs"} or char == "\N{REPLACEMENT CHARACTER}":
            problem = f"A name holds a control character (U+{ord(char):04X})."
            raise NameRefused("name-control-character", problem, _NOTHING_ELSE)
        if category == "Cf":
            problem = f"A name holds a hidden or bidi character (U+{ord(char):04X})."
            raise NameRefused("name-hidden-character", problem, _NOTHING_ELSE)
        if char.isspace():
            raise NameRefused("name-space", f"{_shown(text)} holds a space.", "Give several names one by one.")
    if not text.isascii():
        raise NameRefused("name-not-ascii", f"{_shown(text)} is not ASCII.", f"Write {_ascii_form(text)}.")


def _ascii_form(text: str) -> str:
    """The A-label form of a name; a person must see which one it is, where letters look alike."""
    base = text.removeprefix("*.")
    try:
        found = idna.encode(base, uts46=True).decode() if len(base) <= MAX_NAME else ""
    except UnicodeError:
        found = ""
    return text.removesuffix(base) + found if found else "each label in its 'xn--' form (an A-label)"


def _check_label(label: str, name: str) -> None:
    if not label:
        problem = f"{_shown(name)} has an empty label (two dots, or one in front)."
        raise NameRefused("name-empty-label", problem, "Write one dot between labels, and none in front.")
    if len(label) > MAX_LABEL:
        problem = f"{_shown(name)} has a label of {len(label)} characters; a label has at most {MAX_LABEL}."
        raise NameRefused("name-label-too-long", problem, "Shorten the part between two dots.")
    if not _LABEL.fullmatch(label):
        raise NameRefused(
            "name-characters",
            f"{_shown(name)}: the label {_shown(label)} is not made of letters, digits and inner hyphens.",
            _instead(name, label),
        )
    if label.startswith("xn--"):
        _check_a_label(label, name)
    elif label[2:4] == "--":
        problem = f"{_shown(name)}: labels like {label[:4]}… are reserved (RFC 5890)."
        raise NameRefused("name-reserved-label", problem, "Do without two hyphens as third and fourth characters.")


def _instead(name: str, label: str) -> str:
    """The spelling that was perhaps meant."""
    if "://" in name or "/" in name:
        host = re.split(r"[/:?#]", name.partition("://")[2] or name)[0].rpartition("@")[2]
        return f"Give the host alone, without scheme, port and path: {host[:253] or 'www.example.com'}"
    if "@" in name:
        return "This looks like an address of a mailbox: give the host, after the @, alone."
    if ":" in name:
        return "Give the host alone, without a port."
    if "_" in label:
        return "Hosts have no underscores in their names: CAs refuse them. Use a hyphen, or a wildcard above it."
    return "Write it with letters, digits, hyphens inside and dots only."


def _check_a_label(label: str, name: str) -> None:
    """An A-label must decode to a valid U-label, and be its only encoding (RFC 5891 §5.4)."""
    try:
        same = idna.alabel(idna.ulabel(label)) == label.encode()
    except (idna.IDNAError, UnicodeError, ValueError):
        same = False
    if not same:
        problem = f"{_shown(name)}: {label} is not a valid internationalised label (IDNA 2008)."
        raise NameRefused("name-idna", problem, "Have a registrar's or an IDNA tool convert it again from its letters.")


def _is_address(name: str) -> bool:
    """A name whose last label is a number is read as an address by browsers and by inet_aton."""
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return True
    if not _IN_ADDRESSES.search(name):
        return False
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def ip_address(text: str) -> str:
    """The one spelling of an address of one host (RFC 5952), or NameRefused."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        problem = f"{_shown(text)} is not an IP address."
        raise NameRefused("ip-malformed", problem, "For example: 192.0.2.7, 2001:db8::7") from None
    return checked(address)


def checked(address: IPAddress) -> str:
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            problem = f"{address} names a network interface, which means nothing elsewhere."
            raise NameRefused("ip-scoped", problem, "Write the address without % and what follows.")
        if address.ipv4_mapped is not None:
            raise NameRefused(
                "ip-mapped", f"{address} is an IPv4 address in disguise.", f"Ask for {address.ipv4_mapped}."
            )
    if address.is_multicast or address.is_unspecified or address == ipaddress.IPv4Address("255.255.255.255"):
        problem = f"{address} is not the address of one host."
        raise NameRefused("ip-not-a-host", problem, "Name the address that clients connect to.")
    return str(address)


def same_or_below(name: str, base: str) -> bool:
    """Whether a name lies in a subtree (RFC 5280 §4.2.1.10); the empty subtree is everything."""
    return not base or name == base or name.endswith(f".{base}")


def _shown(text: str) -> str:
    """A text, quoted, printable and short."""
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")


# ── Name constraints ──
# Name constraints (RFC 5280 §4.2.1.10): which names a CA may certify. Not all clients obey them, so we do.


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def outside(constraints: x509.NameConstraints | None, dns: Iterable[str], ips: Iterable[str]) -> list[str]:
    """The names that the constraints do not let through, with a reason each."""
    if constraints is None:
        return []
    wanted: list[str | IPAddress] = [*dns, *map(ipaddress.ip_address, ips)]
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
    trees: Iterable[x509.GeneralName] | None, name: str | IPAddress
) -> list[x509.DNSName | x509.IPAddress]:
    """A list of subtrees says nothing about names of another kind; IPv4 and IPv6 are one kind."""
    if isinstance(name, str):
        return [tree for tree in trees or () if isinstance(tree, x509.DNSName)]
    return [tree for tree in trees or () if isinstance(tree, x509.IPAddress)]


def _covers(tree: x509.DNSName | x509.IPAddress, name: str | IPAddress) -> bool:
    if isinstance(name, str):
        return isinstance(tree, x509.DNSName) and same_or_below(name, tree.value.lower().removeprefix("."))
    network = tree.value
    return isinstance(network, _Network) and network.version == name.version and name in network


def _reaches_into(name: str | IPAddress, tree: x509.DNSName | x509.IPAddress) -> bool:
    """A wildcard covers every label there: *.example also covers the excluded secret.example."""
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
    return x509.DNSName(dns_name(text.removeprefix("."), wildcard=False))
