"""Forecast of a scale-up in progress: its expected phases and the elapsed time."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.utils import timezone

from controlplane.deployments.containers.caching import image_is_cached
from controlplane.deployments.models import Deployment, ScaleUp, Target
from controlplane.deployments.phases.prediction import Prediction
from controlplane.deployments.phases.selectors import predictions_of, scale_up_list
from controlplane.deployments.phases.timeline import WIDTH, Bar, bars_label, bars_of


@dataclass(frozen=True, slots=True)
class Forecast:
    """A scale-up in progress, compared with its prediction.

    Attributes:
        elapsed: seconds since the first sign of demand.
        bars: the expected phases; `now`: position of the elapsed time. Both use units of WIDTH on one scale.
    """

    row: ScaleUp
    prediction: Prediction
    elapsed: float
    bars: tuple[Bar, ...]
    now: float

    @property
    def left(self) -> float:
        """Seconds until its copies are expected to serve; 0 once it is overdue."""
        return max(0.0, self.prediction.seconds - self.elapsed)

    @property
    def late(self) -> float:
        """Seconds by which it exceeds its prediction so far."""
        return max(0.0, self.elapsed - self.prediction.seconds)

    @property
    def phase(self) -> Bar | None:
        """The phase that is expected now; None once it is overdue."""
        return next((bar for bar in self.bars if self.now < bar.x + bar.width), None)

    @property
    def label(self) -> str:
        """The bars as text."""
        return bars_label(self.bars)


def forecast_of(deployment: Deployment, *, now: dt.datetime | None = None) -> Forecast | None:
    """Return the forecast of the scale-up in progress; None without one or without a prediction."""
    row = scale_up_list(deployment=deployment).filter(ended_at=None).first()
    expected = None if row is None else _expected(deployment, row)
    if row is None or expected is None:
        return None
    elapsed = max(0.0, ((now or timezone.now()) - row.began_at).total_seconds())
    longest = max(elapsed, expected.seconds)
    position = WIDTH * elapsed / longest if longest else 0.0
    bars = bars_of(expected.phases, longest=longest)
    return Forecast(row, expected, elapsed, bars, round(position, 2))


def _expected(deployment: Deployment, row: ScaleUp) -> Prediction | None:
    """Return the slowest applicable prediction; if running instances have room, new ones do not apply."""
    more = max(1, row.copies_after - row.copies_before)
    cases = predictions_of(deployment, copies=more)
    if deployment.target.kind == Target.Kind.SAGEMAKER:
        if deployment.image:
            cached = image_is_cached(deployment.image, family=deployment.image_family)
            cases = [item for item in cases if item.cached == cached]
        if _has_room(deployment, row):
            cases = [item for item in cases if not item.new_instances]
    return max(cases, key=lambda item: item.seconds, default=None)


def _has_room(deployment: Deployment, row: ScaleUp) -> bool:
    """Return True if all copies fit on the instances that ran before the scale-up.

    That number is unknown on a shared endpoint; the result is then False.
    """
    each = int(deployment.compute.get("copies_per_instance") or 0)
    return bool(row.machines) and row.copies_after <= row.machines["before"] * each
