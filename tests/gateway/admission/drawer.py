"""One process that admits requests as a gateway does, and writes down each: `python -m ... '<JSON>'`.

Settings: `redis`, `slot`, `limits` (of one tenant), `rate` (requests a second, open loop, evenly spaced;
0 asks again as soon as it is answered), `tasks` (loops that ask), `tokens`, `used` (settled to), `hold`
(seconds that a request takes), `after` and `seconds` (from the start on, when it begins and ends to ask),
`queue` (seconds), `ready` (a file that it makes when Redis has answered). The start, by `clock`, is on stdin.
Output: a line per admitted request, `<asked> <admitted> <ended> <tokens>`; times by `clock`, the second
one `Ticket.at`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from contracts.limits import Limit, LimitsRoute, RateRoute
from contracts.route_table import RouteTable
from gateway.admission import Admission, Broker, clock, line
from gateway.errors import GatewayError
from gateway.routing import Caller


def admission(redis: str, slot: str, *, queue: float = 0.0) -> tuple[Admission, Broker, Redis]:
    """The parts that `gateway.app` puts together."""
    client = line(redis)
    broker = Broker(client, slot)
    return Admission(broker, queue_seconds=queue, queue_length=1000), broker, client


def table(limits: list[dict[str, Any]]) -> RouteTable:
    route = LimitsRoute(tuple(Limit(**limit) for limit in limits))
    return RouteTable(limits={"tenant:acme": route}, rates={"base": RateRoute(1, 1, 1)})


async def ask(config: dict[str, Any], limits: Admission, routes: RouteTable, stop: float) -> None:
    caller = Caller("k", "acme", "p")
    tokens, used = config.get("tokens", 1), config.get("used")
    rate, tasks = config.get("rate", 0), config.get("tasks", 1)
    turn = clock.now()
    while (asked := clock.now()) < stop:
        plan = limits.plan(routes, caller, "base", "base")
        try:
            ticket = await limits.admit(plan, tokens, 0)
        except GatewayError:
            await asyncio.sleep(0 if rate else 0.001)
        else:
            if config.get("hold"):
                await asyncio.sleep(config["hold"])
            ended = clock.now()
            ticket.count(tokens if used is None else used, 0, 0)
            ticket.settle()
            sys.stdout.write(f"{asked:.6f} {ticket.at:.6f} {ended:.6f} {tokens if used is None else used}\n")
            sys.stdout.flush()
        if rate:
            turn = max(turn + tasks / rate, clock.now() - 0.05)
            await asyncio.sleep(max(0.0, turn - clock.now()))


def wait_for_start(ready: Path) -> float:
    """Report that this process is ready; return the time at which it shall start."""
    ready.touch()
    return float(sys.stdin.readline())


async def main(config: dict[str, Any]) -> None:
    limits, broker, client = admission(config["redis"], config["slot"], queue=config.get("queue", 0.0))
    routes = table(config["limits"])
    drawing = asyncio.create_task(broker.run())
    while broker.away:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    start = await asyncio.to_thread(wait_for_start, Path(config["ready"]))
    await asyncio.sleep(max(0.0, start + config.get("after", 0.0) - clock.now()))
    stop = start + config["seconds"]
    await asyncio.gather(*(ask(config, limits, routes, stop) for _ in range(config.get("tasks", 1))))
    drawing.cancel()
    await broker.close()
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
