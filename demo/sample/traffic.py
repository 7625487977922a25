"""Generates a tenant's usage events: office hours, quiet weekends, slow growth. Equal input, equal events."""

from __future__ import annotations

import datetime as dt
import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from contracts.usage_event import UsageEvent, UsageStatus

GATEWAY: Final = "sample"
"""Gateway id of sample events."""
ENDPOINT: Final = "sample"
"""Id of the copy that answered sample events."""

_WEEK: Final = (1.0, 1.08, 1.12, 1.06, 0.94, 0.42, 0.34)
"""Load of each weekday, Monday first."""
_HOURS: Final = (2, 1, 1, 1, 1, 2, 4, 8, 14, 18, 19, 17, 14, 16, 18, 18, 16, 12, 8, 6, 5, 4, 3, 2)
"""Load of each UTC hour."""
_LOAD = 1.0
"""Factor of the whole load; tests lower it."""
_START: Final = 0.65
"""Load of the first day; the last has 1."""
_STATUSES: Final[tuple[tuple[UsageStatus, str, float], ...]] = (
    ("ok", "", 0.972),
    ("cancelled", "", 0.012),
    ("client_error", "context_length_exceeded", 0.01),
    ("error", "upstream_timeout", 0.006),
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a share of the requests calls.

    Attributes:
        name: model name as clients send it.
        engine_name: of the adapter version; "" for the base model.
        prompt_tokens, completion_tokens: medians.
    """

    name: str
    engine_name: str
    share: float
    prompt_tokens: int
    completion_tokens: int
    alias: str = ""
    arm: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant's traffic. `keys` are (public id, share) of its API keys."""

    tenant: str
    base_model: str
    per_day: int
    keys: Sequence[tuple[str, float]]


def events(
    caller: Caller, models: Sequence[Model], *, day: dt.date, first: dt.date, last: dt.date
) -> Iterator[UsageEvent]:
    """Yield the events of a UTC day of the history from `first` to `last`, in order of time."""
    chance = random.Random(f"{caller.tenant} {day}")  # not a secret
    grown = (day - first).days / max(1, (last - first).days)
    load = _LOAD * caller.per_day * _WEEK[day.weekday()] * (_START + (1 - _START) * grown)
    midnight = dt.datetime.combine(day, dt.time(), dt.UTC).timestamp()
    hours = chance.choices(range(24), _HOURS, k=round(load * chance.uniform(0.9, 1.1)))
    times = sorted(midnight + hour * 3600 + chance.uniform(0, 3600) for hour in hours)
    cumulative = list(accumulate(model.share for model in models))
    for started in times:
        model = models[bisect(cumulative, chance.random() * cumulative[-1])]
        yield _event(caller, model, round(started * 1000), chance)


def _event(caller: Caller, model: Model, started_ms: int, chance: random.Random) -> UsageEvent:
    status, code, _ = chance.choices(_STATUSES, [share for *_, share in _STATUSES])[0]
    answered = status in ("ok", "cancelled")
    prompt = 0 if status == "error" else _about(model.prompt_tokens, chance)
    completion = _about(model.completion_tokens, chance) if answered else 0
    ttft, itl = _about(160, chance) + prompt / 20, _about(19, chance)
    return UsageEvent(
        event_id=_uuid7(started_ms, chance),
        tenant=caller.tenant,
        project="default",
        key_id=chance.choices([key for key, _ in caller.keys], [share for _, share in caller.keys])[0],
        request_id=_uuid7(started_ms, chance),
        attempt=0,
        requested_model=model.name,
        alias=model.alias,
        arm=model.arm,
        adapter=model.engine_name,
        base_model=caller.base_model,
        operation="chat",
        backend="worker",
        endpoint=ENDPOINT,
        status=status,
        error_code=code,
        prompt_tokens=prompt,
        cached_tokens=int(prompt * chance.choice((0, 0.25, 0.5, 0.75))),
        completion_tokens=completion,
        reasoning_tokens=0,
        images=0,
        estimated=False,
        ttft_ms=float(ttft) if answered else None,
        itl_ms=float(itl) if completion > 1 else None,
        duration_ms=float(ttft + itl * completion) if answered else 30.0,
        started_at=started_ms,
        gateway_id=GATEWAY,
    )


def _about(median: float, chance: random.Random) -> int:
    return max(1, round(median * chance.lognormvariate(0, 0.45)))


def _uuid7(milliseconds: int, chance: random.Random) -> str:
    text = f"{milliseconds:012x}7{chance.getrandbits(12):03x}{1 << 63 | chance.getrandbits(62):016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
