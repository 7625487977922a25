"""Four real gateways on one Redis, under bursts and steady load: the limit is exact and fully used.

What is above a limit is judged only from what is certain. A request was admitted between its sending and its
answer, so those that began and ended within a window's length were admitted in it. A place is held for longer
than the backend works. How much of a limit is reached depends on how busy the machine is, and on how many
requests it is good for: each reserves more tokens than it uses, and one that does not fit leaves part of the
limit free. Alone on the machine, ask for 95 % by `GRAFTWORK_TEST_REACHED=0.95 GRAFTWORK_TEST_REQUESTS=240`.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import httpx
import pytest
import redis

from contracts.limits import Limit, LimitsRoute, RateRoute, budget_key, budget_period
from tests.gateway.admission.conftest import Valkey
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table
from tests.waiting import eventually

pytestmark = pytest.mark.slow
GATEWAYS = 4
SECONDS = 3.0
"""Length of the windows, in slices of 50 ms as a minute has them of a second."""
BURSTS, STEADY = 2 * SECONDS, 4 * SECONDS
LIMIT = int(os.environ.get("GRAFTWORK_TEST_REQUESTS", "45"))
"""Requests a window: few, so that a slow machine is asked for more as well."""
USED = 15
"""Tokens of an answer: 11 of the prompt, 4 more."""
PRICE = 6 * 10 + 5 * 1 + 4 * 20
AT_LEAST = float(os.environ.get("GRAFTWORK_TEST_REACHED", "0.5"))


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, by the monotonic clock; `tokens` are 0 where it was refused."""

    sent: float
    came: float
    tokens: int


class Crowd:
    """Clients of all gateways, which note each answer."""

    def __init__(self, urls: Sequence[str], session: aiohttp.ClientSession, *, hold: float = 0.0) -> None:
        self.urls, self.answers = urls, list[Answer]()
        self.rng = random.Random(11)
        self._session, self._hold = session, hold

    async def ask(self, gateway: int) -> bool:
        """Return True if the request was admitted. A status other than 200 and 429 fails the test."""
        plan = json.dumps({"tokens": 4, "delay": self._hold / 4})
        body = {"model": "base", "max_tokens": 8, "messages": [{"role": "user", "content": plan}]}
        headers = {"authorization": f"Bearer {ACME}"}
        url = self.urls[gateway] + "/v1/chat/completions"
        sent = time.monotonic()
        async with self._session.post(url, json=body, headers=headers) as answer:
            said = await answer.json()
        assert answer.status in (200, 429), said
        tokens = said["usage"]["total_tokens"] if answer.status == 200 else 0
        self.answers.append(Answer(sent, time.monotonic(), tokens))
        return answer.status == 200

    async def bursts(self, seconds: float, most: int) -> None:
        """At each gateway, now and then, up to `most` at once; a gateway may be idle for a while."""

        async def load_gateway(gateway: int) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await asyncio.sleep(self.rng.choice((0.05, 0.3, 1.0)))
                await asyncio.gather(*(self.ask(gateway) for _ in range(self.rng.randint(1, most))))

        await asyncio.gather(*map(load_gateway, range(GATEWAYS)))

    async def steadily(self, seconds: float, rate: float) -> None:
        """`rate` a second at equal distances, from one gateway to the next."""
        asked: list[asyncio.Task[bool]] = []
        due = began = time.monotonic()
        while due < began + seconds:
            asked.append(asyncio.create_task(self.ask(len(asked) % GATEWAYS)))
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*asked)


@dataclass(slots=True)
class Plant:
    """Four gateways over one Redis and one backend."""

    gateways: Sequence[GatewayProcess]
    control_plane: ControlPlane
    upstream: str
    version: int = 0

    def limit(self, limit: Limit) -> None:
        """Puts `limit` in force, and no other, at every gateway."""
        self.version += 1
        self.control_plane.publish(
            replace(
                route_table(self.upstream),
                version=self.version,
                limits={"tenant:acme": LimitsRoute((limit,))},
                rates={"base": RateRoute(10, 1, 20)},
            )
        )
        for gateway in self.gateways:
            eventually(functools.partial(self._serves, gateway.url))

    def crowd(self, work: Callable[[Crowd], Awaitable[object]], *, hold: float = 0.0) -> list[Answer]:
        """Return the answers to the requests that `work` sends."""

        async def run() -> list[Answer]:
            timeout = aiohttp.ClientTimeout(total=120)
            async with aiohttp.ClientSession(
                timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
            ) as session:
                crowd = Crowd([gateway.url for gateway in self.gateways], session, hold=hold)
                await work(crowd)
                return crowd.answers

        return asyncio.run(run())

    def busy(self) -> dict[str, Any]:
        """Return the backend's maximum and sum of concurrent requests since the previous call."""
        said: dict[str, Any] = httpx.get(self.upstream + "/busy").json()
        return said

    def _serves(self, url: str) -> bool:
        return bool(httpx.get(url + "/readyz", timeout=30).json()["routes_version"] == self.version)


@pytest.fixture(scope="module")
def plant(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder = tmp_path_factory.mktemp("gateways")
    server = Valkey(folder)
    server.start()
    gateways = [
        GatewayProcess(server.url, folder / f"wal-{number}", folder / f"{number}.log")
        for number in range(GATEWAYS)
    ]
    with redis.Redis.from_url(server.url) as client:
        plant = Plant(gateways, ControlPlane(client), upstream)
        try:
            for gateway in gateways:
                gateway.start(ready=False)
            yield plant
        finally:
            for gateway in gateways:
                gateway.stop()
            server.stop()


def fullest(answers: Sequence[Answer], amount: Callable[[Answer], int]) -> int:
    """The most that was certainly admitted in one span of SECONDS."""
    return max(
        sum(amount(each) for each in answers if first.sent <= each.sent and each.came <= first.sent + SECONDS)
        for first in answers
    )


def reached(answers: Sequence[Answer], limit: int, amount: Callable[[Answer], int], began: float) -> float:
    """Share of the limit that was admitted in STEADY seconds from `began`, less the first window; or of what
    was asked for, where a busy machine held up those who ask."""
    steady = [each for each in answers if began + SECONDS <= each.came < began + STEADY]
    most = limit * (STEADY - SECONDS) / SECONDS
    used = sum(map(amount, steady))
    admitted = sum(map(one, steady))
    return used / min(most, used / admitted * len(steady)) if admitted else 0.0


def one(answer: Answer) -> int:
    return int(answer.tokens > 0)


def tokens(answer: Answer) -> int:
    return answer.tokens


@pytest.mark.parametrize(
    ("limit", "amount"),
    [
        (Limit("requests", LIMIT, seconds=SECONDS), one),
        (Limit("tokens", LIMIT * USED, seconds=SECONDS), tokens),
    ],
    ids=["requests", "tokens"],
)
def test_windows(plant: Plant, limit: Limit, amount: Callable[[Answer], int]) -> None:
    plant.limit(limit)
    began = 0.0

    async def work(crowd: Crowd) -> None:
        nonlocal began
        await crowd.bursts(BURSTS, 60)
        began = time.monotonic()
        await crowd.steadily(STEADY, 1.1 * LIMIT / SECONDS)

    answers = plant.crowd(work)
    assert fullest(answers, amount) <= limit.amount
    assert any(not one(each) for each in answers), "more was asked for than the limit"
    share = reached(answers, limit.amount, amount, began)
    print(f"reached {share:.3f} of the limit")
    assert share >= AT_LEAST


def test_places(plant: Plant) -> None:
    limit = 40
    plant.limit(Limit("concurrency", limit))

    async def fill(crowd: Crowd) -> None:
        # Some hold places ahead as others come for all of them.
        await crowd.steadily(1.5, 12)
        await crowd.bursts(BURSTS, 30)

    steady: dict[str, float] = {}
    seconds = 0.0

    async def stay(crowd: Crowd) -> None:
        nonlocal seconds, steady
        leave = asyncio.Event()

        async def ask_again(number: int) -> None:
            while not leave.is_set():
                await crowd.ask(number % GATEWAYS)

        asked = [asyncio.create_task(ask_again(number)) for number in range(2 * limit)]
        # All places are taken by then.
        await asyncio.sleep(1.0)
        plant.busy()
        # Measure while demand exceeds the limit: neither while places fill nor while the last requests end.
        began = time.monotonic()
        await asyncio.sleep(STEADY / 2)
        steady, seconds = plant.busy(), time.monotonic() - began
        leave.set()
        await asyncio.gather(*asked)

    plant.busy()
    plant.crowd(fill, hold=0.5)
    assert plant.busy()["most"] <= limit
    plant.busy()
    plant.crowd(stay, hold=2.0)
    assert limit / 2 < steady["most"] <= limit
    share = steady["seconds"] / limit / seconds
    print(f"reached {share:.3f} of the limit")
    assert share >= AT_LEAST


def test_a_budget(plant: Plant) -> None:
    amount = 300 * PRICE
    name, _ = budget_period("month", dt.datetime.now(dt.UTC))
    cut = int(time.time() * 1000) - 1000
    plant.control_plane.client.hset(budget_key("tenant:acme", name), mapping={"base": 0, "cut": cut})
    plant.limit(Limit("budget", amount))

    async def spend(crowd: Crowd) -> None:
        end = time.monotonic() + 60
        while sum(map(one, crowd.answers)) * PRICE < 0.95 * amount and time.monotonic() < end:
            await crowd.bursts(1.0, 40)
        # All that is left is asked for as well.
        await crowd.bursts(2.0, 40)

    spent = sum(map(one, plant.crowd(spend))) * PRICE
    assert 0.95 * amount <= spent <= amount
