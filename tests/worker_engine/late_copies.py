"""A stream of copies that complete only when the caller waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from worker_engine.adapters.copy_stream import HostArrival
from worker_engine.adapters.device_tier import DeviceTier
from worker_engine.engine import Engine


class LateCopies:
    """A read without a wait finds old data, and a write without a wait is overwritten.

    A copy may not stand behind steps that were launched after its `begin`: those it would not wait for.
    """

    def __init__(self) -> None:
        self.queue: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.done = self.launched = 0
        self._begun = -1

    def begin(self) -> LateArrival:
        self._begun = self.launched
        return self.mark()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert self._begun == self.launched, "the copy does not wait for steps that may read what is there"
        self.queue.append((target, source))

    def mark(self) -> LateArrival:
        return LateArrival(self, self.done + len(self.queue))

    def run(self, count: int) -> None:
        """The device does the first copies that are left, until `count` are done in all."""
        while self.done < count:
            target, source = self.queue.pop(0)
            target.copy_(source)
            self.done += 1


class LateArrival(HostArrival):
    def __init__(self, stream: LateCopies, count: int) -> None:
        super().__init__()
        self.stream, self.count = stream, count

    def wait(self) -> None:
        self.stream.run(self.count)

    @property
    def done(self) -> bool:
        return self.stream.done >= self.count


def tier_of(engine: Engine) -> DeviceTier:
    tier = engine.scheduler.adapters.tier
    assert isinstance(tier, DeviceTier)
    return tier


def delay(engine: Engine) -> LateCopies:
    """From now on the engine's copies are late."""
    tier_of(engine)._copies = stream = LateCopies()
    run: Callable[..., Any] = engine._runner.run

    def counted(*args: Any) -> Any:
        stream.launched += 1
        return run(*args)

    engine._runner.run = counted  # type: ignore[method-assign, assignment]
    return stream
