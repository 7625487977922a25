"""The gateway's current state as gauges, and the counters that its parts keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.admission import Broker
from gateway.observability import families as f
from gateway.routing.counters import RoutingCounters
from gateway.routing.fleet import Fleet
from gateway.routing.quarantine import QuarantineFeed
from gateway.routing.route_feed import RouteFeed
from gateway.routing.waiting_room import WaitingRoom
from gateway.usage.shipper import Shipper
from gateway.usage.wal import SEGMENT_BYTES, Wal

_STATES: Final = {"closed": 0, "half_open": 1, "open": 2}


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The parts whose state is read at each heartbeat and scrape."""

    wal: Wal
    shipper: Shipper
    feed: RouteFeed
    fleet: Fleet
    broker: Broker
    counters: RoutingCounters
    room: WaitingRoom
    quarantine: QuarantineFeed

    def gauges(self) -> Iterator[tuple[f.Family, dict[str, str], float]]:
        yield f.BACKLOG, {}, self.backlog
        yield f.WRITABLE, {}, 0 if self.wal.admits() else 1
        yield f.ROUTES_VERSION, {}, self.feed.version
        yield f.ROUTES_AGE, {}, self.feed.age
        yield f.REDIS_AWAY, {}, 1 if self.broker.away else 0
        yield f.HELD, {}, self.room.held
        yield f.QUARANTINED, {}, self.quarantine.held
        for copy_id, copy in self.fleet.known().items():
            yield f.COPY_IN_FLIGHT, {"copy": copy_id}, copy.in_flight
            yield f.BREAKER, {"copy": copy_id}, _STATES[copy.breaker.state]

    def totals(self) -> Iterator[tuple[f.Family, dict[str, str], int]]:
        yield f.ATTEMPTS, {}, self.counters.attempts
        yield f.RETRIES, {}, self.counters.retries
        yield f.RETRIES_DENIED, {}, self.counters.retries_denied
        yield f.FALLBACKS, {}, self.counters.fallbacks
        yield f.NO_COPY, {}, self.counters.no_copy
        yield f.ENGINE_DEATHS, {}, self.fleet.deaths.total
        yield f.SHIPPED, {}, self.shipper.num_shipped
        for copy_id, copy in self.fleet.known().items():
            yield f.OPENINGS, {"copy": copy_id}, copy.breaker.openings

    @property
    def in_flight(self) -> int:
        """Requests at copies now."""
        return sum(copy.in_flight for copy in self.fleet.known().values())

    @property
    def backlog(self) -> int:
        """Unshipped bytes of the usage log, with the unused ends of whole segments included."""
        durable, shipped = self.wal.durable, self.shipper.position
        whole = (durable.segment - shipped.segment) * SEGMENT_BYTES
        return max(0, whole + durable.offset - shipped.offset)
