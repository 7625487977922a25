"""Non-public endpoints that the operator allows for outgoing requests (GRAFTWORK_OUTGOING_ALLOW)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Self

from contracts.addresses import Address, Networks

_HOST: Final = re.compile(r"\[?([A-Za-z0-9._:-]+?)\]?(?::([0-9]{1,5}))?")


class OpenEndpoints:
    """A set of allowed targets: `host`, `host:port` (a name or an address) and networks."""

    def __init__(self, hosts: frozenset[tuple[str, int | None]], networks: Networks) -> None:
        self._hosts, self._networks = hosts, networks

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """Parse the entries. Raises ValueError naming the first malformed one."""
        hosts, networks = set[tuple[str, int | None]](), list[str]()
        for entry in entries:
            if "/" in entry:
                networks.append(entry)
            elif (match := _HOST.fullmatch(entry)) is None or int(match[2] or 0) > 65535:
                raise ValueError(f"{entry[:64]!r} is not a host, host:port or network, such as minio:9000")
            else:
                hosts.add((match[1].lower(), int(match[2]) if match[2] else None))
        return cls(frozenset(hosts), Networks(networks))

    def has_host(self, host: str, port: int) -> bool:
        """Return True if this host is allowed, with this port or with any port."""
        return not self._hosts.isdisjoint({(host.lower(), port), (host.lower(), None)})

    def has_address(self, address: Address) -> bool:
        """Return True if the address lies in an allowed network."""
        return address in self._networks
