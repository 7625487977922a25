"""The deaths of engines that this gateway observes, with the models that were in flight."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from gateway.routing.quarantine.attribution import WINDOW_SECONDS

CONFIRM_SECONDS: Final = 10.0
"""How long after a connection broke its server's end makes that a death."""
_MOST_COMPLETED: Final = 4096
"""Models noted as completed before old ones are forgotten."""
BASE: Final = ""
"""Stands for the base model among the models in flight."""


@dataclass(frozen=True, slots=True)
class ObservedDeath:
    """A death of a copy's engine.

    Attributes:
        suspects: engine names of the adapters in flight, BASE for the base model; True for each that had
            completed a request within the window.
    """

    base: str
    copy: str
    suspects: dict[str, bool]


class EngineDeaths:
    """Observations since the last `take`. Use it on the event loop only.

    Attributes:
        total: deaths that this process observed.
        bell: set by each new observation.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._completed: dict[tuple[str, str], float] = {}
        self._broken: dict[str, tuple[float, str, frozenset[str]]] = {}
        self._observed: list[ObservedDeath] = []
        self._most = _MOST_COMPLETED
        self.total = 0
        self.bell = asyncio.Event()

    def completed(self, base: str, model: str) -> None:
        """Note that an adapter, or BASE, has completed a request."""
        self._completed[base, model] = self._clock()
        if len(self._completed) >= self._most:
            self._forget_old()
            self._most = max(_MOST_COMPLETED, 2 * len(self._completed))

    def engine_died(self, copy: str, base: str, models: Collection[str]) -> None:
        """Note that a copy says that its engine died while it ran `models`."""
        self._forget_old()
        at, _, broken = self._broken.pop(copy, (-math.inf, "", frozenset()))
        if self._clock() - at <= CONFIRM_SECONDS:
            models = {*models, *broken}
        self._observe(copy, base, {model: (base, model) in self._completed for model in models})

    def broke(self, copy: str, base: str, models: Collection[str]) -> None:
        """Note that a connection broke; it was a death if the server's process turns out to have ended."""
        at, _, _ = self._broken.get(copy, (-math.inf, "", frozenset()))
        if self._clock() - at > CONFIRM_SECONDS:
            self._broken[copy] = (self._clock(), base, frozenset(models))

    def process_ended(self, copy: str) -> None:
        """Note that no process listens at the copy's address.

        Operators and hosts end processes too, so a model that completed requests is not suspected.
        """
        at, base, models = self._broken.pop(copy, (0.0, "", frozenset()))
        if models and self._clock() - at <= CONFIRM_SECONDS:
            self._forget_old()
            fresh = {model: False for model in models if (base, model) not in self._completed}
            self._observe(copy, base, fresh)

    def answered(self, copy: str) -> None:
        """Note that the copy's process lives: what broke was one connection."""
        self._broken.pop(copy, None)

    def take(self) -> list[ObservedDeath]:
        """Return the new observations, and forget them."""
        taken, self._observed = self._observed, []
        self.bell.clear()
        return taken

    def _observe(self, copy: str, base: str, suspects: dict[str, bool]) -> None:
        if suspects:
            self.total += 1
            self._observed.append(ObservedDeath(base, copy, suspects))
            self.bell.set()

    def _forget_old(self) -> None:
        since = self._clock() - WINDOW_SECONDS
        self._completed = {model: at for model, at in self._completed.items() if at >= since}
