"""Shares the deaths of engines with all gateways through Redis, and knows which adapters are held back."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from contracts.errors import ContractError
from contracts.quarantine import QUARANTINES, Quarantine, engine_deaths_key
from gateway.errors import AdapterQuarantined
from gateway.routing.names import Resolution
from gateway.routing.quarantine.attribution import (
    REMEMBER_SECONDS,
    WINDOW_SECONDS,
    Death,
    quarantines,
    with_death,
)
from gateway.routing.quarantine.observed import EngineDeaths, ObservedDeath

logger = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 1.0
_MOST_DEATHS: Final = 500
"""Recorded deaths of one base model."""


class QuarantineFeed:
    """The adapters that are held back. `run` it as a task; without Redis the last known ones stay so."""

    def __init__(self, redis: Redis, deaths: EngineDeaths) -> None:
        self._redis, self.deaths = redis, deaths
        self._pending: list[ObservedDeath] = []
        self._held: dict[str, tuple[float, Quarantine]] = {}
        """By engine name: `time.monotonic` of the end, and the quarantine."""
        self._is_away = False

    @property
    def held(self) -> int:
        """Number of adapters that are held back now."""
        now = time.monotonic()
        return sum(until > now for until, _ in self._held.values())

    def admitted(self, models: Sequence[Resolution]) -> tuple[Resolution, ...]:
        """Return those of a request's models that are not held back.

        Raises:
            AdapterQuarantined: all of them are; it says until when the first is.
        """
        if not self._held:
            return tuple(models)
        admitted = tuple(model for model in models if not self._seconds(model))
        if not admitted:
            raise self._refusal(models[0])
        return admitted

    def _seconds(self, model: Resolution) -> int:
        """Return the whole seconds for which the model is held back; 0 if it is not."""
        until, _ = self._held.get(model.engine_name, (0.0, None))
        return max(0, math.ceil(until - time.monotonic()))

    def _refusal(self, model: Resolution) -> AdapterQuarantined:
        _, quarantine = self._held[model.engine_name]
        return AdapterQuarantined(
            f"The adapter {model.model!r} is held back: engines of {len(quarantine.copies)} copies of "
            f"{model.base!r} ended while they ran it. Correct the adapter and register a new version, or ask "
            "the operator to release it.",
            retry_after=max(1, self._seconds(model)),
        )

    async def run(self) -> None:
        """Report deaths at once and read the quarantines each second; an outage is waited out."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.deaths.bell.wait(), REFRESH_SECONDS)
            self._pending = [*self._pending, *self.deaths.take()][-_MOST_DEATHS:]
            try:
                while self._pending:
                    await self._report(self._pending[0])
                    del self._pending[0]
                await self._refresh()
                self._is_away = False
            except (RedisError, OSError) as error:
                if not self._is_away:
                    logger.warning("quarantines: Redis is away, the known ones stay in force: %s", error)
                self._is_away = True
                await asyncio.sleep(REFRESH_SECONDS)

    async def _report(self, observed: ObservedDeath) -> None:
        """Record a death, and hold back the adapters that the rule attributes it to."""
        key = engine_deaths_key(observed.base)
        now = await self._now()

        async def record(pipe: Pipeline) -> None:
            recorded = _deaths(await cast(Any, pipe.get(key)))
            earlier = await _quarantines(pipe)
            deaths = with_death(recorded, Death(observed.copy, now, observed.suspects))
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.set(
                key, json.dumps([asdict(death) for death in deaths[-_MOST_DEATHS:]]), ex=int(WINDOW_SECONDS)
            )
            for found in quarantines(observed.base, deaths, earlier, now=now):
                pipe.hset(QUARANTINES, found.adapter, found.to_json())
                logger.error(
                    "adapter %s is held back for %.0f s: engines of %s died with it",
                    found.adapter,
                    found.until - now,
                    ", ".join(found.copies),
                )

        await self._redis.transaction(record, key, QUARANTINES)

    async def _refresh(self) -> None:
        found = await _quarantines(self._redis)
        if not found:
            self._held = {}
            return
        now, here = await self._now(), time.monotonic()
        self._held = {
            name: (here + each.until - now, each) for name, each in found.items() if each.until > now
        }
        if old := [name for name, each in found.items() if each.until + REMEMBER_SECONDS < now]:
            await cast(Any, self._redis.hdel(QUARANTINES, *old))

    async def _now(self) -> float:
        # Redis's own clock is the same for all gateways and readers.
        seconds, micros = await self._redis.time()
        return float(seconds + micros / 1e6)


def _deaths(text: bytes | None) -> list[Death]:
    try:
        return [Death(each["copy"], each["at"], each["suspects"]) for each in json.loads(text or b"[]")]
    except (ValueError, TypeError, KeyError):
        return []  # written by another release


async def _quarantines(redis: Redis | Pipeline) -> dict[str, Quarantine]:
    """Return the last quarantine of each adapter that Redis remembers."""
    found: dict[str, Quarantine] = {}
    for text in (await cast(Any, redis.hgetall(QUARANTINES))).values():
        with suppress(ContractError):
            quarantine = Quarantine.from_json(text)
            found[quarantine.adapter] = quarantine
    return found
