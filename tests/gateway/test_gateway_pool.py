"""The pool of running gateways that tests share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis

from contracts.redis_names import ROUTES_SNAPSHOT
from tests.gateway.conftest import GatewayProcess
from tests.gateway.gateway_pool import FIRST_DATABASE, MOST, GatewayPool


@dataclass
class Gateway:
    """Notes what it finds in Redis where a real gateway reads its routes."""

    redis_url: str
    running: bool = False
    found: object = None

    def start(self, *, ready: bool) -> None:
        with redis.Redis.from_url(self.redis_url) as client:
            self.found = client.get(ROUTES_SNAPSHOT)
            client.set(ROUTES_SNAPSHOT, "routes of a test")
        self.running = True

    def stop(self) -> None:
        self.running = False


def make(redis_url: str, folder: Path, environ: dict[str, str]) -> GatewayProcess:
    return cast(GatewayProcess, Gateway(redis_url))


def get(pool: GatewayPool, number: int) -> Any:
    return pool({"GRAFTWORK_TEST": str(number)})


def test_a_gateway_is_shared_and_the_least_recently_used_one_makes_room(
    redis_server: str, tmp_path: Path
) -> None:
    pool = GatewayPool(make, redis_server.removesuffix("/0"), tmp_path)
    gateways = [get(pool, number) for number in range(MOST)]
    assert len({gateway.redis_url for gateway in gateways}) == MOST
    assert get(pool, 0) is gateways[0]
    newcomer = get(pool, MOST)
    assert [gateway.running for gateway in gateways] == [True, False] + [True] * (MOST - 2)
    assert newcomer.redis_url == gateways[1].redis_url
    pool.close()
    assert not any(gateway.running for gateway in [*gateways, newcomer])


def test_a_gateway_finds_no_routes_of_the_one_before_it(redis_server: str, tmp_path: Path) -> None:
    server = redis_server.removesuffix("/0")
    with redis.Redis.from_url(f"{server}/{FIRST_DATABASE}") as client:
        client.set(ROUTES_SNAPSHOT, "routes of an ended gateway")
    pool = GatewayPool(make, server, tmp_path)
    gateway = get(pool, 0)
    assert gateway.redis_url == f"{server}/{FIRST_DATABASE}"
    assert gateway.found is None
