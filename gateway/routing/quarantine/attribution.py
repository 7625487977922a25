"""The rule by which deaths of engines are attributed to adapters (ADR 89).

1. Every model in flight at a death is a suspect: each adapter, and the base model.
2. A suspect that completed a request within the window is cleared if another suspect has not.
3. A death gives its n suspects 1/n points each; half of that if they all have completed requests.
4. Of one copy's deaths only the one with the most points counts, since the copy itself may be at fault.
5. An adapter with POINTS is held back, which takes at least two copies. For an adapter that was held back in
   the last day, one copy suffices, and the time doubles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from contracts.quarantine import Quarantine

WINDOW_SECONDS: Final = 600.0
POINTS: Final = 2.0
AGAIN_POINTS: Final = 1.0
"""Points of an adapter that was held back before."""
FIRST_SECONDS: Final = 600.0
MOST_SECONDS: Final = 86_400.0
REMEMBER_SECONDS: Final = 86_400.0
"""How long after its end a quarantine counts as an earlier one."""
SAME_DEATH_SECONDS: Final = 5.0
"""Gateways that had requests at a dying copy report within this time; their suspects are united."""
DEAD_ANSWERS_SECONDS: Final = 30.0
"""How long after a death answers of the dead engine are not taken for another death."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Death:
    """A recorded death; see `ObservedDeath`. `at`: Unix seconds of Redis's clock."""

    copy: str
    at: float
    suspects: dict[str, bool]


def with_death(deaths: Iterable[Death], new: Death) -> list[Death]:
    """Return the deaths of the window with a new report, which may be about one of them."""
    recent = [death for death in deaths if death.at > new.at - WINDOW_SECONDS]
    same = next(
        (each for each in recent if each.copy == new.copy and new.at - each.at <= DEAD_ANSWERS_SECONDS), None
    )
    if same is None:
        return [*recent, new]
    if new.at - same.at > SAME_DEATH_SECONDS:
        return recent
    names = same.suspects.keys() | new.suspects.keys()
    united = {name: same.suspects.get(name, False) or new.suspects.get(name, False) for name in names}
    return [replace(each, suspects=united) if each is same else each for each in recent]


def points_by_copy(deaths: Iterable[Death], adapter: str, *, since: float) -> dict[str, float]:
    """Return an adapter's points of each copy, from the deaths after `since`."""
    points: dict[str, float] = defaultdict(float)
    for death in deaths:
        if death.at > since and (share := _share(death.suspects, adapter)):
            points[death.copy] = max(points[death.copy], share)
    return dict(points)


def _share(suspects: Mapping[str, bool], adapter: str) -> float:
    if adapter not in suspects:
        return 0.0
    unproven = sum(not proven for proven in suspects.values())
    if unproven:
        return 0.0 if suspects[adapter] else 1 / unproven
    return 0.5 / len(suspects)


def quarantines(
    base: str, deaths: Iterable[Death], earlier: Mapping[str, Quarantine], *, now: float
) -> Iterator[Quarantine]:
    """Yield the adapters to hold back from now on.

    Args:
        earlier: the last quarantine of each adapter that had one.
    """
    deaths = list(deaths)
    for adapter in sorted({name for death in deaths for name in death.suspects if name}):
        last = earlier.get(adapter)
        if last is not None and last.until > now:
            continue
        times = last.times if last is not None and now - last.until <= REMEMBER_SECONDS else 0
        points = points_by_copy(deaths, adapter, since=0.0 if last is None else last.at)
        if sum(points.values()) >= (AGAIN_POINTS if times else POINTS) - _ROUNDING:
            seconds = min(FIRST_SECONDS * 2**times, MOST_SECONDS)
            yield Quarantine(base, adapter, now, now + seconds, times + 1, tuple(sorted(points)))
