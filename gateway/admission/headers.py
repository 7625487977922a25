"""`x-ratelimit-*` and `retry-after`, named and formatted as OpenAI's."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

from gateway.admission.window import WindowAccount
from gateway.http.asgi import Header

BUDGET_ALERT: Final[Header] = (b"x-graftwork-budget", b"alert")
"""Header of answers to callers that have spent more than a budget's alert level."""
_NAMES: Final = {
    kind: tuple(f"x-ratelimit-{field}-{kind}".encode() for field in ("limit", "remaining", "reset"))
    for kind in ("requests", "tokens")
}


def window_headers(accounts: Sequence[WindowAccount], now: float) -> list[Header]:
    """Return limit, remaining and reset headers of the tightest of `accounts`, all of one kind.

    Remaining is what was free for everyone at the last call, plus this process's own lease. Reset is the time
    until the whole limit would be free again if no more requests came.
    """
    tightest, least = accounts[0], accounts[0].remaining(now)
    for account in accounts[1:]:
        if (remaining := account.remaining(now)) < least:
            tightest, least = account, remaining
    amount = tightest.limit.amount
    limit, remaining_name, reset = _NAMES[tightest.kind]
    return [
        (limit, b"%d" % amount),
        (remaining_name, b"%d" % max(0, min(amount, least))),
        (reset, duration(math.ceil(tightest.reset(now)) if least < amount else 0)),
    ]


@functools.lru_cache(maxsize=4096)
def duration(seconds: int) -> bytes:
    """Format a duration as Go does, and so OpenAI: `0s`, `20s`, `1m0s`, `1h0m5s`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest}s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return (f"{hours}h{text}" if hours else text).encode()
