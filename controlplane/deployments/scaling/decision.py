"""What our own controller does at a moment: target tracking as a pure function of what it has seen.

It scales out fast and in slowly. Out: the load has been above the target for `out_after` seconds; then to as
many copies as bring it to the target. In: it has been below nine tenths of the target for `in_after` seconds;
then to as many as its highest value of that time needs. The load is counted over all copies and compared with
those that are wanted, so that copies on their way are not asked for twice.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Self

from controlplane.deployments.scaling.policy import Metric, ScalingPolicy

PERIOD: Final = 10.0
"""Seconds in which one reading above the target counts for all, as CloudWatch's maximum of a period does."""
GAP: Final = 15.0
"""Seconds without a reading after which nothing is known of the load before: it counts anew."""
LOW: Final = 0.9
_PARTS: Final = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """The load at one moment.

    Attributes:
        load: of the policy's metric, over all copies and what waits at gateways.
        held: requests that wait at gateways for a copy.
        whole: every copy in the routes has answered.
    """

    load: float
    held: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class ScaleState:
    """What is kept from one decision to the next; times are Unix seconds.

    Attributes:
        copies: wanted.
        high_since, high_at: since when, and last when, the load was above the target.
        low_since: since when it has been low.
        peaks: (from when on, highest value) of the parts of the last `in_after` seconds in which it was low.
        out_at, in_at: the last changes.
        read_at: the last reading.
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
    def of(cls, values: Mapping[str, Any], *, copies: int) -> Self:
        """From `to_json`; what is unknown is left out."""
        known = {item.name for item in fields(cls)} - {"copies"}
        found = {name: value for name, value in values.items() if name in known}
        peaks = tuple((float(since), float(peak)) for since, peak in found.pop("peaks", ()))
        return cls(copies, peaks=peaks, **found)

    def to_json(self) -> dict[str, Any]:
        told = asdict(self)
        del told["copies"]
        return told


def decide(
    policy: ScalingPolicy, state: ScaleState, reading: Reading, now: dt.datetime
) -> tuple[ScaleState, str]:
    """The next state, and why it wants another number of copies; "" where it does not."""
    at = now.timestamp()
    state = _seen(policy, state, reading, at)
    least, most = policy.bounds(now)
    wanted, cause = _tracked(policy, state, reading, at)
    if not least <= wanted <= most:
        bounded = min(max(wanted, least), most)
        if bounded != state.copies and not least <= state.copies <= most:
            cause = f"there are to be {least} to {most} copies now"
        wanted = bounded
    if wanted == state.copies:
        return state, ""
    if wanted > state.copies:
        return replace(state, copies=wanted, out_at=at, high_since=None, low_since=None, in_at=None), cause
    return replace(state, copies=wanted, in_at=at, low_since=at, peaks=((at, reading.load),)), cause


def _seen(policy: ScalingPolicy, state: ScaleState, reading: Reading, at: float) -> ScaleState:
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
    """With this load in the newest part, without the parts that ended before the last `in_after` seconds."""
    width = max(policy.in_after / _PARTS, 1.0)
    kept = [(since, peak) for since, peak in peaks if since + width > at - policy.in_after]
    if kept and at - kept[-1][0] < width:
        since, peak = kept.pop()
        return (*kept, (since, max(peak, load)))
    return (*kept, (at, load))


def _tracked(policy: ScalingPolicy, state: ScaleState, reading: Reading, at: float) -> tuple[int, str]:
    unit = "at a time" if policy.metric is Metric.CONCURRENCY else "a minute"
    fits = math.ceil(reading.load / policy.target)
    if state.copies == 0:
        if not reading.held and not reading.load:
            return 0, ""
        return max(policy.from_zero, fits), f"{reading.held} requests wait, and there is no copy"
    if state.high_since is not None and at - state.high_since >= policy.out_after:
        if _over(state.out_at, policy.out_cooldown, at) and fits > state.copies:
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
    if fits < state.copies and _over(state.in_at, policy.in_cooldown, at):
        cause = f"at most {peak:.1f} requests {unit} in the last {policy.in_after} s"
        return fits, cause
    return state.copies, ""


def _over(since: float | None, seconds: int, at: float) -> bool:
    return since is None or at - since >= seconds
