"""An op with known costs and a clock with a limit, for tests of the tuner."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from kernels import tuned
from kernels.tuning import Clock

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Size:
    """A made-up configuration; fastest at width 8 and depth 4, and width 16 gives wrong results."""

    width: int = 2
    depth: int = 2

    def written(self) -> dict[str, int]:
        return asdict(self)

    @property
    def microseconds(self) -> float:
        return 10.0 + 3 * abs(math.log2(self.width / 8)) + 2 * abs(math.log2(self.depth / 4))


@dataclass
class MadeUp:
    """An op that records its trials; a trial of the size in `ends` ends the process."""

    tried: list[Size] = field(default_factory=list)
    ends: Size | None = None
    op: str = "made_up"
    levels: tuple[str, ...] = ("rows",)
    tolerance: float = 0.1
    sets: int = 1

    def shapes(self, *, quick: bool) -> Sequence[tuned.Shape]:
        return [{"rows": 1}, {"rows": 2}]

    def parse(self, values: Mapping[str, Any]) -> Size:
        return Size(**values)

    def default(self, shape: tuned.Shape) -> Size:
        return Size()

    def axes(self, shape: tuned.Shape, *, quick: bool) -> Mapping[str, Sequence[object]]:
        return {"width": (1, 2, 4, 8, 16), "depth": (1, 2, 4, 8)}

    def fits(self, shape: tuned.Shape, config: Size, shared_memory: int) -> bool:
        return config.width * config.depth <= 64

    def trial(self, shape: tuned.Shape, device: torch.device, cache: int, *, quick: bool) -> MadeUp:
        return self

    def error(self, config: Size) -> float:
        self.tried.append(config)
        if config == self.ends:
            raise SystemExit
        return math.nan if config.width == 16 else 0.0

    def calls(self, config: Size) -> Sequence[Callable[[], object]]:
        return [lambda: config.microseconds]


@dataclass(frozen=True)
class LimitedClock(Clock):
    """A clock that runs out after some trials."""

    op: MadeUp = field(default_factory=MadeUp)
    turns: float = math.inf

    @property
    def over(self) -> bool:
        return len(self.op.tried) >= self.turns

    def microseconds(self, calls: Sequence[Callable[[], object]]) -> float:
        took = calls[0]()
        assert isinstance(took, float)
        return took
