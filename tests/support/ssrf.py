"""Addresses that a check must never dial, written down apart from the code that refuses them."""

import ipaddress
from collections.abc import Iterator

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Whatever the operator lists.
NEVER = [
    "0.0.0.0/8", "169.254.0.0/16", "169.254.169.254/32", "169.254.170.2/32", "100.100.100.200/32", "168.63.129.16/32",
    "192.0.0.0/24", "192.0.0.192/32", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
    "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "239.255.255.250/32",
    "240.0.0.0/4", "255.255.255.255/32",
    "::/128", "::2/128", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "64:ff9c::/32", "100::/64",
    "100:0:0:1::/64", "200::/7", "400::/6", "2001::/32", "2001:1::/32", "2001:2::/48", "2001:10::/28",
    "2001:20::/28", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20", "4000::/3", "5f00::/16", "8000::/3", "e000::/4",
    "fe00::/9", "fe80::/10", "fec0::/10", "ff00::/8", "ff02::1/128", "fd00:ec2::254/128", "fd00:ec2::23/128",
    "fd20:ce::254/128",
]  # fmt: skip
PRIVATE = ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]  # unless listed
LOOPBACK = ["127.0.0.0/8", "::1/128"]  # unless listed by a network inside


def ends(networks: list[str]) -> Iterator[IPAddress]:
    """The first, the second, one in the middle and the last address of each."""
    for text in networks:
        network = ipaddress.ip_network(text)
        size = network.num_addresses
        yield from {network[0], network[min(1, size - 1)], network[size // 2], network[size - 1]}


def wrapped(inner: ipaddress.IPv4Address) -> dict[str, ipaddress.IPv6Address]:
    """Every way to hide an IPv4 address in an IPv6 one."""
    number = int(inner)
    numbers = {
        "mapped": 0xFFFF << 32 | number,
        "compatible": number,
        "translated": 0xFFFF << 48 | number,
        "NAT64": 0x64FF9B << 96 | number,
        "local NAT64": 0x64FF9B0001 << 80 | number,
        "6to4": 0x2002 << 112 | number << 80 | 1,
        "Teredo client": 0x20010000 << 96 | 0x08080808 << 64 | number ^ 0xFFFFFFFF,
        "Teredo server": 0x20010000 << 96 | number << 64 | 0x08080808 ^ 0xFFFFFFFF,
        "ISATAP": 0x20010470 << 96 | 0x00005EFE << 32 | number,
        "global ISATAP": 0x20010470 << 96 | 0x02005EFE << 32 | number,
        "link-local ISATAP": 0xFE80 << 112 | 0x00005EFE << 32 | number,
    }
    return {how: ipaddress.IPv6Address(value) for how, value in numbers.items()}


_inner = {address for address in ends([*NEVER, *PRIVATE, *LOOPBACK]) if isinstance(address, ipaddress.IPv4Address)}
WRAPPED = sorted({each for address in _inner for each in wrapped(address).values()} - {ipaddress.IPv6Address(1)})
PLAIN = sorted({*ends([*NEVER, *PRIVATE, *LOOPBACK])}, key=lambda each: (each.version, int(each)))
DENIED: list[IPAddress] = [*PLAIN, *WRAPPED]
assert len(PLAIN) >= 180
assert len(DENIED) >= 1000

# Right beside what is denied, and well-known.
PUBLIC = [
    "1.0.0.0", "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
    "128.0.0.0", "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0",
    "191.255.255.255", "192.0.1.0", "192.0.1.255", "192.0.3.0", "192.88.98.255", "192.88.100.0", "192.167.255.255",
    "192.169.0.0", "198.17.255.255", "198.20.0.0", "198.51.99.255", "198.51.101.0", "203.0.112.255", "203.0.114.0",
    "223.255.255.255",
    "2000::", "2001:200::1", "2001:4860:4860::8888", "2001:db7:ffff::1", "2001:db9::", "2606:4700:4700::1111",
    "2620:4f:7fff::", "2620:4f:8001::", "3ffe:ffff::", "64:ff9b::808:808",
    "2001:470::5efe:808:808", "3fff:1000::",
]  # fmt: skip

# Hosts of URLs that some programs take for 127.0.0.1, 169.254.169.254 or 10.0.0.1.
ODD_HOSTS = [
    "2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "0x7f.0.0.1", "127.1", "127.0.1", "0", "0x0",
    "127.0.0.1.", "127.000.000.001", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "167772161",
    "10.1", "%31%32%37.0.0.1", "127.0.0.1%00.example.com", "[::1%25lo]", "[fe80::1%25eth0]", "[::127.0.0.1%1]",
    "localhost.", "a..b", "-", ".", "*.example.com", "exa_mple.com", "256.256.256.256", "1.2.3", "0.0.0.0x7f",
    "[::1", "[]", "[v1.fe80::a]",
]  # fmt: skip
