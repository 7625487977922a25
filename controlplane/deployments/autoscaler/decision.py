"""Decisions of our own controller: target tracking as a pure function of its readings.

It scales out fast and in slowly. Out: the load has been above the target for `out_after` seconds; then to the
number of copies that brings it to the target. In: the load has been below nine tenths of the target for
`in_after` seconds; then to the number that its peak in that time needs. The load is summed over all copies
and compared with the wanted ones, so copies that are starting are not requested twice.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Self

from controlplane.deployments.scaling.policy import Metric, ScalingPolicy

PERIOD: Final = 10.0
"""Seconds for which one reading above the target counts, like CloudWatch's maximum over a period."""
GAP: Final = 15.0
"""Seconds without a reading after which earlier load is unknown, and counting restarts."""
LOW: Final = 0.9
_PARTS: Final = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """The load at one moment.

    Attributes:
        load: value of the policy's metric, over all copies and requests that wait at gateways.
        held: requests that wait at gateways for a copy.
        whole: every copy in the routes has answered.
    """

    load: float
    held: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class ScaleState:
    """State that is kept between decisions; times are Unix seconds.

    Attributes:
        copies: wanted number of copies.
        high_since, high_at: first and latest time of the current period above the target.
        low_since: start of the current period of low load.
        peaks: (start, highest load) of each part of the last `in_after` seconds of low load.
        out_at, in_at: time of the last scale-out and scale-in.
        read_at: time of the last reading.
    """

    copies: int
    high_since: float | None = None
    high_at: float | None = None
    low_since: float | None = None
    peaks: tuple[tuple[float, float], ...] = ()
    out_at: float | None = None
    in_at: float | None = None
    read_at: float | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, copies: int) -> Self:
        """Restore a state from `to_json`; unknown fields are ignored."""
        known = {item.name for item in fields(cls)} - {"copies"}
        found = {name: value for name, value in values.items() if name in known}
        peaks = tuple((float(since), float(peak)) for since, peak in found.pop("peaks", ()))
        return cls(copies, peaks=peaks, **found)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["copies"]
        return values


def decide(
    policy: ScalingPolicy, state: ScaleState, reading: Reading, now: dt.datetime
) -> tuple[ScaleState, str]:
    """Return the next state, and why it changes the number of copies; "" if it does not."""
    at = now.timestamp()
    state = _update_load(policy, state, reading, at)
    least, most = policy.bounds(now)
    wanted, cause = _tracked(policy, state, reading, at)
    if not least <= wanted <= most:
        bounded = min(max(wanted, least), most)
        if bounded != state.copies and not least <= state.copies <= most:
            cause = f"the bounds are {least} to {most} copies now"
        wanted = bounded
    if wanted == state.copies:
        return state, ""
    if wanted > state.copies:
        return replace(state, copies=wanted, out_at=at, high_since=None, low_since=None, in_at=None), cause
    return replace(state, copies=wanted, in_at=at, low_since=at, peaks=((at, reading.load),)), cause


def _update_load(policy: ScalingPolicy, state: ScaleState, reading: Reading, at: float) -> ScaleState:
    """Return the state after a reading."""
    if state.read_at is not None and at - state.read_at > GAP:
        state = replace(state, high_since=None, high_at=None, low_since=None, peaks=())
    state, room = replace(state, read_at=at), policy.target * state.copies
    if reading.load > room:
        since = state.high_since
        return replace(state, high_since=at if since is None else since, high_at=at, low_since=None, peaks=())
    if state.high_at is None or at - state.high_at > PERIOD:
        state = replace(state, high_since=None, high_at=None)
    if not reading.whole or reading.load >= LOW * room > 0:
        return replace(state, low_since=None, peaks=())
    since = at if state.low_since is None else state.low_since
    return replace(state, low_since=since, peaks=_peaks(policy, state.peaks, reading.load, at))


def _peaks(
    policy: ScalingPolicy, peaks: tuple[tuple[float, float], ...], load: float, at: float
) -> tuple[tuple[float, float], ...]:
    """Add this load to the newest part, and drop parts that ended before the last `in_after` seconds."""
    width = max(policy.in_after / _PARTS, 1.0)
    recent = [(since, peak) for since, peak in peaks if since + width > at - policy.in_after]
    if recent and at - recent[-1][0] < width:
        since, peak = recent.pop()
        return (*recent, (since, max(peak, load)))
    return (*recent, (at, load))


def _tracked(policy: ScalingPolicy, state: ScaleState, reading: Reading, at: float) -> tuple[int, str]:
    unit = "at a time" if policy.metric is Metric.CONCURRENCY else "a minute"
    fits = math.ceil(reading.load / policy.target)
    if state.copies == 0:
        if not reading.held and not reading.load:
            return 0, ""
        return max(policy.from_zero, fits), f"{reading.held} requests are waiting without a copy"
    if state.high_since is not None and at - state.high_since >= policy.out_after:
        if _has_passed(state.out_at, policy.out_cooldown, at) and fits > state.copies:
            cause = (
                f"{reading.load:.1f} requests {unit} for {at - state.high_since:.0f} s, and "
                f"{state.copies} copies are for {policy.target * state.copies:.1f}"
            )
            return fits, cause
        return state.copies, ""
    if state.low_since is None or policy.protect or at - state.low_since < policy.in_after:
        return state.copies, ""
    peak = max((highest for _, highest in state.peaks), default=0.0)
    fits = math.ceil(peak / policy.target)
    if fits < state.copies and _has_passed(state.in_at, policy.in_cooldown, at):
        cause = f"at most {peak:.1f} requests {unit} in the last {policy.in_after} s"
        return fits, cause
    return state.copies, ""


def _has_passed(since: float | None, seconds: int, at: float) -> bool:
    return since is None or at - since >= seconds
