"""Engines that verify all that they may, and guesses that are right as often as is asked."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tests.worker_engine.conftest import EngineFactory
from worker_engine.engine import Engine
from worker_engine.sequence import Sequence
from worker_engine.speculation.base import Proposer
from worker_engine.speculation.lengths import Offer
from worker_engine.speculation.speculator import Speculator

MakeSpeculating = Callable[..., Engine]


class Prophet(Proposer):
    """A proposer that knows each request's tokens and drafts `share` of them right; errors are anywhere."""

    free: ClassVar[bool] = True

    def __init__(self, completions: Mapping[str, Items[int]], share: float, seed: int = 0) -> None:
        self._completions, self._share, self._draw = completions, share, random.Random(seed)

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        guesses = []
        for sequence, most in wanted:
            done = sequence.num_completion_tokens
            coming = self._completions.get(sequence.request.request_id, ())[done : done + most]
            guesses.append(
                [t if self._draw.random() < self._share else self._draw.randrange(256) for t in coming]
            )
        return guesses

    def seconds(self, sequences: int, longest: int) -> float:
        return 0.0

    def forget(self, sequence: Sequence) -> None:
        pass

    def close(self) -> None:
        pass


def eager(engine: Engine) -> Engine:
    """Every guess is verified for which there is a row."""

    def choose(offers: Items[Offer], *, decoding: int, rows: int, room: int) -> list[int]:
        lengths = []
        for offer in offers:
            lengths.append(max(0, min(offer.most, room)))
            room -= lengths[-1]
        return lengths

    assert engine.speculator is not None
    engine.speculator._lengths.choose = choose  # type: ignore[method-assign]
    return engine


def prophesying(engine: Engine, proposer: Proposer, most: int = 6) -> Engine:
    """The engine with another proposer, eager."""
    engine.speculator = Speculator(proposer, most=most, device=torch.device("cpu"), eos=frozenset({255}))
    return eager(engine)


@pytest.fixture
def make_speculating(make_engine: EngineFactory) -> MakeSpeculating:
    """An engine that guesses by n-grams, eagerly."""

    def build(model: Path, **changes: Any) -> Engine:
        return eager(make_engine(model, **({"speculation": "ngram"} | changes)))

    return build


def accepted(engine: Engine) -> tuple[int, int]:
    """Return the numbers of verified and of accepted draft tokens."""
    assert engine.speculator is not None
    counts = engine.speculator.counts.by_adapter().values()
    return sum(proposed for proposed, _ in counts), sum(kept for _, kept in counts)
