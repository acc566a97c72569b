"""The names that a certificate may carry: one spelling for each DNS name and each address, or a refusal.

Lower case and A-labels only (RFC 5280 §7.2, RFC 5890), so that two names are the same exactly if their text is.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import Final

import idna

from holdfast.pki.refused import NameRefused

MAX_NAME: Final = 253  # RFC 1035 §2.3.4: 255 octets on the wire
MAX_LABEL: Final = 63
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


def dns_name(text: str, *, wildcard: bool = True) -> str:
    """The one spelling of a DNS name, or NameRefused. A wildcard is the whole leftmost label (RFC 6125 §6.4.3)."""
    _check_characters(text)
    name = text.lower()
    if not name:
        raise NameRefused("name-empty", "A DNS name is empty.")
    if len(name) > MAX_NAME:
        raise NameRefused("name-too-long", f"{_shown(name)} has {len(name)} characters; a name has at most {MAX_NAME}.")
    if name.endswith("."):
        raise NameRefused("name-trailing-dot", f"{_shown(name)} ends with a dot.", "Write it without the dot.")
    base = name.removeprefix("*.")
    if base != name and not wildcard:
        raise NameRefused("name-wildcard", f"{_shown(name)} is a wildcard, which is not allowed here.")
    if "*" in base:
        raise NameRefused(
            "name-wildcard", f"{_shown(name)} has a '*' that is not its whole first label.", "Write *.example.com."
        )
    if _is_address(base):
        raise NameRefused(
            "name-is-address", f"{_shown(name)} is an address or looks like one.", "Ask for it as an IP address."
        )
    for label in base.split("."):
        _check_label(label, name)
    return name


def _check_characters(text: str) -> None:
    """Say what is wrong in words: a name with a hidden character looks like another one when it is printed."""
    for char in text:
        category = unicodedata.category(char)
        if category in {"Cc", "Cs"} or char == "\N{REPLACEMENT CHARACTER}":
            raise NameRefused("name-control-character", f"A name holds a control character (U+{ord(char):04X}).")
        if category == "Cf":
            raise NameRefused("name-hidden-character", f"A name holds a hidden or bidi character (U+{ord(char):04X}).")
        if char.isspace():
            raise NameRefused("name-space", f"{_shown(text)} holds a space.")
    if not text.isascii():
        raise NameRefused(
            "name-not-ascii", f"{_shown(text)} is not ASCII.", "Write each label in its 'xn--' form (an A-label)."
        )


def _check_label(label: str, name: str) -> None:
    if not label:
        raise NameRefused("name-empty-label", f"{_shown(name)} has an empty label (two dots, or one in front).")
    if len(label) > MAX_LABEL:
        raise NameRefused("name-label-too-long", f"{_shown(name)} has a label of more than {MAX_LABEL} characters.")
    if not _LABEL.fullmatch(label):
        raise NameRefused(
            "name-characters",
            f"{_shown(name)}: the label {_shown(label)} is not made of letters, digits and inner hyphens.",
        )
    if label.startswith("xn--"):
        _check_a_label(label, name)
    elif label[2:4] == "--":
        raise NameRefused("name-reserved-label", f"{_shown(name)}: labels like {label[:4]}… are reserved (RFC 5890).")


def _check_a_label(label: str, name: str) -> None:
    """It must stand for something, and be the only way to write that (RFC 5891 §5.4)."""
    try:
        same = idna.alabel(idna.ulabel(label)) == label.encode()
    except (idna.IDNAError, UnicodeError, ValueError):
        same = False
    if not same:
        raise NameRefused("name-idna", f"{_shown(name)}: {label} is not a valid internationalised label (IDNA 2008).")


def _is_address(name: str) -> bool:
    """A name whose last label is a number is read as an address by browsers and by inet_aton."""
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return True
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
        raise NameRefused("ip-malformed", f"{_shown(text)} is not an IP address.") from None
    return checked(address)


def checked(address: IPAddress) -> str:
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise NameRefused("ip-scoped", f"{address} names a network interface, which means nothing elsewhere.")
        if address.ipv4_mapped is not None:
            raise NameRefused(
                "ip-mapped", f"{address} is an IPv4 address in disguise.", f"Ask for {address.ipv4_mapped}."
            )
    if address.is_multicast or address.is_unspecified or address == ipaddress.IPv4Address("255.255.255.255"):
        raise NameRefused("ip-not-a-host", f"{address} is not the address of one host.")
    return str(address)


def same_or_below(name: str, base: str) -> bool:
    """Whether a name lies in a subtree (RFC 5280 §4.2.1.10); the empty subtree is everything."""
    return not base or name == base or name.endswith(f".{base}")


def _shown(text: str) -> str:
    """Quoted, printable and short, whatever it holds."""
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")
