"""Predict how long N more copies take to serve: a sum of phases, each from measurements.

    seconds = detect + provision (a new instance) + image + weights + runtime + traffic

Copies start in parallel, so the slowest one counts: one on a new instance, if the running instances lack
room. The image is pulled unless it is cached; a new instance still reads a cached image for the first time.
This module does not import Django: the benchmark of cold starts predicts its own rounds with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.deployments.phase_names import PHASES

GROWTH_PHASES: Final = ("detect", "provision", "copy")
"""Phases of a SageMaker scale-up that can be separated, as in AWS's own published trials."""
FEWEST: Final = 3
"""Number of own measured scale-ups from which on they replace published figures."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of each phase.

    Attributes:
        pull: pulling an image that the instance does not have.
        first_read: reading a cached image on a new instance.
        cached: using an image that is present and was read before.
        basis: source of the figures.
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
        """Return median timings by phase, for copies without an image of their own.

        A median is not moved by one slow start.

        Raises:
            ValueError: `rows` is empty.
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
    """Return the predicted phases until `copies` more copies serve.

    Args:
        cached: instances have the image cached.
        room: copies that fit on the running instances.
        per_instance: copies that fit on one new instance.
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
    """Return the median phases of scale-ups that were split into `GROWTH_PHASES`.

    Raises:
        ValueError: `rows` is empty.
    """
    if not rows:
        raise ValueError("no growth was measured")
    phases = {name: statistics.median(row.get(name, 0.0) for row in rows) for name in GROWTH_PHASES}
    return Prediction(copies, True, new_instances, phases, basis)


def held_out_errors(rounds: Sequence[Mapping[str, float]]) -> list[float]:
    """Return the relative prediction error of each round after the first FEWEST.

    Each round is predicted from the rounds before it, as a deployment's next start is.

    Raises:
        ValueError: FEWEST rounds or fewer.
    """
    if len(rounds) <= FEWEST:
        raise ValueError(f"a round is predicted from {FEWEST} before it")
    errors = []
    for number, held_out in enumerate(rounds[FEWEST:], FEWEST):
        before = rounds[:number]
        prediction = predict(Timings.measured(before, basis="rounds before"), copies=1, cached=True, room=0)
        whole = sum(held_out.get(name, 0.0) for name in PHASES)
        errors.append(abs(prediction.seconds - whole) / whole)
    return errors


def of_startup(seconds: Mapping[str, float]) -> dict[str, float]:
    """Map the bundled worker's start-up phases (`worker_engine/startup.py`) to ours.

    Unknown phases count as runtime.
    """
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
"""Document 002's four means, solved for their common phases.

A copy on a running instance takes 379 s, and 212.8 of these pull its image. On a new instance it takes 579.4
s (580 as printed), with the image cached 407.4 s. Four figures that reproduce four means prove nothing about
another model or instance."""
