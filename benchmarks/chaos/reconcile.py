"""Compares the bill with the clients' records and the backends' tokens."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.chaos.clients import StreamRecord
from benchmarks.chaos.plant import ReportedUsage

LAST_SECONDS: Final = 1.0
"""Tokens of this last stretch of a stream may be unbilled if a kill of its gateway cut the stream."""
_PROMPT: Final = (11, 5)
"""Prompt tokens and cached tokens of every request."""


@dataclass(frozen=True, slots=True)
class Row:
    """One usage event as stored in the database."""

    request_id: str
    attempt: int
    status: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: bool


@dataclass(slots=True)
class Verdict:
    """The result of a reconciliation. Each list holds requests that are wrong.

    Attributes:
        streams: answers with HTTP 200 of which a client received at least one token.
        once: of those, how many are billed once.
        ends: how they ended.
        over: billed more than was generated.
        under: billed less than was received, beyond the last second of a stream that a kill cut.
        unlike: a whole answer, or a prompt, billed with wrong counts.
        unbilled_tokens: received and not billed, in the last seconds before kills.
        longest_unbilled: longest time in seconds from the first unbilled token to the kill.
    """

    streams: int = 0
    once: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    twice: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    under: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    seen_tokens: int = 0
    billed_tokens: int = 0
    generated_tokens: int = 0
    unbilled_tokens: int = 0
    longest_unbilled: float = 0.0

    @property
    def wrong(self) -> list[str]:
        return [*self.twice, *self.never, *self.over, *self.under, *self.unlike]


def reconcile(
    seen: Sequence[StreamRecord],
    rows: Sequence[Row],
    generated: Mapping[str, int],
    deaths: Sequence[Sequence[float]],
    usage: Mapping[str, ReportedUsage] | None = None,
) -> Verdict:
    """Compare the records, rows and generated tokens.

    Args:
        deaths: by gateway, in ascending order.
        usage: usage that a real worker reported for its requests.
    """
    usage = usage or {}
    verdict = Verdict()
    by_request: dict[str, list[Row]] = {}
    for row in rows:
        by_request.setdefault(row.request_id, []).append(row)
    for request_id, found in by_request.items():
        billed = sum(row.completion_tokens for row in found)
        verdict.billed_tokens += billed
        if billed > generated.get(request_id, 0):
            verdict.over.append(f"{request_id}: {billed} billed of {generated.get(request_id, 0)}")
        prompts = {_PROMPT, usage[request_id][:2]} if request_id in usage else {_PROMPT}
        for row in found:
            if row.completion_tokens and (row.prompt_tokens, row.cached_tokens) not in prompts:
                verdict.unlike.append(f"{request_id}: {row}")
    verdict.generated_tokens = sum(generated.values())
    for item in seen:
        if item.replayed:
            if item.request_id in by_request:
                verdict.twice.append(f"{item.request_id}: a replay was billed")
        elif item.tokens:
            rows_of = by_request.get(item.request_id, [])
            _judge(item, rows_of, deaths[item.gateway], verdict, usage.get(item.request_id))
    return verdict


def _judge(
    item: StreamRecord,
    rows: Sequence[Row],
    deaths: Sequence[float],
    verdict: Verdict,
    usage: ReportedUsage | None,
) -> None:
    verdict.streams += 1
    verdict.ends[item.end] += 1
    verdict.seen_tokens += len(item.tokens)
    billed = [row for row in rows if row.completion_tokens]
    label = f"{item.request_id} ({item.end}, {len(item.tokens)} of {item.asked} seen)"
    if len(billed) != 1:
        (verdict.twice if billed else verdict.never).append(f"{label}: {rows}")
        return
    verdict.once += 1
    [row] = billed
    if unbilled := item.tokens[row.completion_tokens :]:
        stretch = _death(item, deaths) - unbilled[0]
        if row.status == "interrupted" and stretch <= LAST_SECONDS:
            verdict.unbilled_tokens += len(unbilled)
            verdict.longest_unbilled = max(verdict.longest_unbilled, stretch)
        else:
            verdict.under.append(f"{label}: {row}, the next token came {stretch:.2f} s before the kill")
    elif item.end == "whole":
        # A worker's answer may end before it has as many tokens as requested.
        made = {item.asked, usage.completion_tokens} if usage else {item.asked}
        if row.completion_tokens not in made or row.status != "ok":
            verdict.unlike.append(f"{label}: {row}")


def _death(item: StreamRecord, deaths: Sequence[float]) -> float:
    """Return when the gateway died under a stream; infinity if it did not.

    A client sees a cut after the death, and receives data in transit. A client that hung up may have left
    before the death, before its disconnect was recorded.
    """
    if item.end == "cut":
        last = bisect.bisect_right(deaths, item.ended) - 1
        return deaths[last] if last >= 0 and deaths[last] >= item.started else math.inf
    following = bisect.bisect_left(deaths, item.ended)
    return deaths[following] if following < len(deaths) else math.inf
