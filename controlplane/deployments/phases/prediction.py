"""How long until N more copies serve: a sum of phases, each taken from what has been measured.

    seconds = detect + provision (a new instance) + image + weights + runtime + traffic

Copies start beside each other, so the slowest counts: one on a new instance, if the running ones have no room
for all. The image is pulled where it is not cached; where it is, a new instance still reads it for the first
time. Nothing here knows Django: the benchmark of cold starts predicts its own rounds with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PHASES: Final = ("detect", "provision", "image", "weights", "runtime", "traffic")
"""In their order: seeing the need; a machine, or a process, for it; the program on it; the model's weights in
memory; the first step and the server; the first request that may come."""
GROWTH_PHASES: Final = ("detect", "provision", "copy")
"""What can be told apart of a growth at SageMaker, as in AWS's own published trials."""
FEWEST: Final = 3
"""Measured scale-ups of one's own, from which on they are better than somebody else's."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of each phase.

    Attributes:
        pull: of an image that the instance does not have.
        first_read: of a cached image on an instance that is new.
        cached: of an image that is there and has been read.
        basis: where the figures are from.
    """

    detect: float
    provision: float
    pull: float
    first_read: float
    cached: float
    weights: float
    runtime: float
    traffic: float
    basis: str

    @classmethod
    def measured(cls, rows: Sequence[Mapping[str, float]], *, basis: str) -> Timings:
        """Of copies without an image of their own, by phase: medians, which one slow start does not move.

        Raises:
            ValueError: there is nothing to learn from.
        """
        if not rows:
            raise ValueError("no start was measured")
        found = {name: statistics.median(row.get(name, 0.0) for row in rows) for name in PHASES}
        image = found.pop("image")
        return cls(pull=image, first_read=image, cached=image, basis=basis, **found)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds by phase until all of `copies` serve."""

    copies: int
    cached: bool
    new_instances: int
    phases: Mapping[str, float]
    basis: str

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


def predict(
    timings: Timings, *, copies: int, cached: bool, room: int = 0, per_instance: int = 1
) -> Prediction:
    """When `copies` more serve.

    Args:
        cached: the image is kept on instances.
        room: copies that fit on the instances that run.
        per_instance: copies that fit on a new one.
    """
    beyond = max(0, copies - room)
    fresh = beyond > 0
    image = timings.pull if not cached else timings.first_read if fresh else timings.cached
    phases = {
        "detect": timings.detect,
        "provision": timings.provision if fresh else 0.0,
        "image": image,
        "weights": timings.weights,
        "runtime": timings.runtime,
        "traffic": timings.traffic,
    }
    return Prediction(copies, cached, -(-beyond // max(1, per_instance)), phases, timings.basis)


def predict_growth(
    rows: Sequence[Mapping[str, float]], *, copies: int, new_instances: int, basis: str
) -> Prediction:
    """As growths that parted into the need, machines and the rest have gone: by phase, medians.

    Raises:
        ValueError: there is nothing to learn from.
    """
    if not rows:
        raise ValueError("no growth was measured")
    phases = {name: statistics.median(row.get(name, 0.0) for row in rows) for name in GROWTH_PHASES}
    return Prediction(copies, True, new_instances, phases, basis)


def held_out_errors(rounds: Sequence[Mapping[str, float]]) -> list[float]:
    """Of each round but the first FEWEST, how far its whole is from what those before it predict, as a share
    of it: as a deployment's next start is predicted from those that it has had.

    Raises:
        ValueError: FEWEST rounds or fewer.
    """
    if len(rounds) <= FEWEST:
        raise ValueError(f"a round is predicted from {FEWEST} before it")
    errors = []
    for number, held_out in enumerate(rounds[FEWEST:], FEWEST):
        before = rounds[:number]
        told = predict(Timings.measured(before, basis="rounds before"), copies=1, cached=True, room=0)
        whole = sum(held_out.get(name, 0.0) for name in PHASES)
        errors.append(abs(told.seconds - whole) / whole)
    return errors


def of_startup(seconds: Mapping[str, float]) -> dict[str, float]:
    """A bundled worker's own phases (`worker_engine/startup.py`) as ours; unknown ones are runtime."""
    return {
        "image": _sum(seconds, ("process", "imports", "native_libraries")),
        "weights": _sum(seconds, ("tokenizer", "weights")),
        "runtime": sum(
            value
            for name, value in seconds.items()
            if name not in ("process", "imports", "native_libraries", "tokenizer", "weights", "first_token")
        ),
        "traffic": seconds.get("first_token", 0.0),
    }


def _sum(seconds: Mapping[str, float], names: Iterable[str]) -> float:
    return sum(seconds.get(name, 0.0) for name in names)


_DETECT, _COPY, _COPY_PULLED = 40.0, 126.2, 339.0
_NEW_PULLED, _NEW_CACHED = 579.4, 407.4
PUBLISHED: Final = Timings(
    detect=_DETECT,
    provision=_NEW_PULLED - _COPY_PULLED - _DETECT,
    pull=_COPY_PULLED - _COPY,
    first_read=_NEW_CACHED - _DETECT - (_NEW_PULLED - _COPY_PULLED - _DETECT) - _COPY,
    cached=0.0,
    weights=_COPY,
    runtime=0.0,
    traffic=0.0,
    basis="AWS's published means for Llama 3.1 70B on ml.p4d.24xlarge ("
    "weights stand for weights, runtime and traffic together)",
)
"""Document 002's four means solved for the phases that they share: a copy on a running instance takes 379 s,
of which pulling its image 212.8; on a new one 579.4 (580 as printed), with the image cached 407.4. Four
figures from four means: that they give those back proves nothing about another model or instance."""
