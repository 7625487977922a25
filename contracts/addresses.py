"""Where a request comes from, and whether that lies in a network. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MOST_HOPS: Final = 16
"""Proxies of ours that a request may have passed; a longer X-Forwarded-For of them is not believed."""


def parse_network(text: str) -> Network:
    """A CIDR, or one address as the network of it alone.

    Raises:
        ValueError: it is neither; the text says what it takes.
    """
    try:
        network = ip_network(text)
    except ValueError:
        try:
            meant = ip_interface(text).network
        except ValueError:
            raise ValueError(
                f"{text[:64]!r} is no address or network, as 192.0.2.0/24 or 2001:db8::/32"
            ) from None
        raise ValueError(
            f"{text[:64]!r} has bits set behind its prefix: write {meant} if that is meant"
        ) from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError(f"{text[:64]!r} is IPv4 written as IPv6: write it as IPv4")
    return network


class Networks:
    """Some networks, to be asked whether an address lies in one of them.

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
    """The address that a request comes from; None where that cannot be told.

    X-Forwarded-For is read from its end, which the proxy next to us wrote, back to the first address that
    is no proxy of ours: what stands before that was written by the client itself.

    Args:
        peer: the other end of the socket.
        forwarded: values of the X-Forwarded-For headers, in order.
        proxies: whom to believe. Not believed, a peer is the client.
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
    """An address, with a port behind it or not; one of IPv4 in IPv6's clothes is IPv4."""
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
