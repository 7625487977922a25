"""Draw a scale-up as bars: start and end of each phase, for a template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from controlplane.deployments.models import ScaleUp
from controlplane.deployments.phase_names import PHASES
from controlplane.deployments.phases.prediction import Prediction

WIDTH: Final = 1000
"""Width of the drawing, in its own units."""
_NAMES: Final = {
    "detect": gettext_lazy("demand detection"),
    "provision": gettext_lazy("machine or process"),
    "image": gettext_lazy("image"),
    "weights": gettext_lazy("weights"),
    "runtime": gettext_lazy("runtime"),
    "traffic": gettext_lazy("traffic"),
    "copy": gettext_lazy("machine, image, weights and runtime"),
}
_BESIDE_MACHINE: Final = gettext_lazy("image, weights and runtime")
"""Label of `copy` if `provision` is a separate bar."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One phase; `x` and `width` in WIDTH's units; `phase` is its key."""

    phase: str
    name: str
    seconds: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One scale-up; `label` is the bars as text."""

    row: ScaleUp
    bars: tuple[Bar, ...]
    label: str
    seconds: float


def timeline(row: ScaleUp, *, longest: float) -> Timeline:
    """Return a scale-up's bars, scaled to `longest` seconds so that rows are comparable."""
    bars = bars_of(row.phases_in_order, longest=longest)
    label = bars_label(bars) or _("in progress")
    return Timeline(row, bars, label, sum(bar.seconds for bar in bars))


def bars_of(phases: Mapping[str, float], *, longest: float) -> tuple[Bar, ...]:
    """Return a bar for each phase that takes time, in sequence, scaled to `longest` seconds."""
    bars, x = [], 0.0
    for name, seconds in phases.items():
        if not seconds:
            continue
        width = WIDTH * seconds / longest if longest else 0.0
        label = _BESIDE_MACHINE if name == "copy" and "provision" in phases else _NAMES[name]
        bars.append(Bar(name, str(label), seconds, round(x, 2), round(width, 2)))
        x += width
    return tuple(bars)


def bars_label(bars: Iterable[Bar]) -> str:
    """Return the bars as text."""
    return ", ".join(f"{bar.name} {bar.seconds:.1f} s" for bar in bars)


def predicted(predictions: list[Prediction]) -> list[tuple[Prediction, tuple[Bar, ...], str]]:
    """Return each prediction with its bars on a common scale and their text."""
    longest = max((item.seconds for item in predictions), default=0.0)
    drawn = ((item, bars_of(item.phases, longest=longest)) for item in predictions)
    return [(item, bars, bars_label(bars)) for item, bars in drawn]


def phase_names() -> list[tuple[str, str]]:
    """Return (key, name) of each separable phase, in time order."""
    return [(name, str(_NAMES[name])) for name in PHASES]


def timelines(rows: list[ScaleUp]) -> list[Timeline]:
    """Return the timelines of several scale-ups on a common scale."""
    longest = max((sum(row.phases.values()) for row in rows), default=0.0)
    return [timeline(row, longest=longest) for row in rows]
