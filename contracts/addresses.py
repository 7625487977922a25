"""Client addresses and the networks that they belong to. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_interface, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MOST_HOPS: Final = 16
"""Most trusted proxies that a request may pass; a longer X-Forwarded-For of them is refused."""


def parse_network(text: str) -> Network:
    """Parse a CIDR, or one address as a network of that address alone.

    Raises:
        ValueError: the text is neither; the message says what is expected.
    """
    try:
        network = ip_network(text)
    except ValueError:
        try:
            meant = ip_interface(text).network
        except ValueError:
            raise ValueError(
                f"{text[:64]!r} is not an address or network, such as 192.0.2.0/24 or 2001:db8::/32"
            ) from None
        raise ValueError(
            f"{text[:64]!r} has bits set behind its prefix: write {meant} if that is meant"
        ) from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError(f"{text[:64]!r} is IPv4 written as IPv6: write it as IPv4")
    return network


class Networks:
    """A set of networks; `address in networks` is True if any of them holds the address.

    Raises:
        ValueError: a CIDR is malformed.
    """

    __slots__ = ("_networks",)

    def __init__(self, cidrs: Iterable[str] = ()) -> None:
        self._networks = tuple(parse_network(cidr) for cidr in cidrs)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def client_address(peer: str, forwarded: Iterable[str], proxies: Networks) -> Address | None:
    """Return the address that a request comes from, or None if it is unknown.

    X-Forwarded-For is read from its end, which our own proxy wrote, back to the first address that is not a
    trusted proxy. The client itself may have written everything before that.

    Args:
        peer: the other end of the socket.
        forwarded: values of the X-Forwarded-For headers, in order.
        proxies: trusted proxies. A peer outside of them is the client.
    """
    address = _parse(peer)
    if not proxies or address not in proxies:
        return address
    hops = ",".join(forwarded).rsplit(",", MOST_HOPS)
    if hops == [""]:
        return address
    for hop in reversed(hops[-MOST_HOPS:]):
        address = _parse(hop)
        if address not in proxies:
            return address
    return address if len(hops) <= MOST_HOPS else None


def _parse(text: str) -> Address | None:
    """Parse an address with or without a port; an IPv4-mapped IPv6 address becomes IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
