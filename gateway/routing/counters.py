"""Counters of routing, for metrics: plain numbers that only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RoutingCounters:
    """Counters of one gateway process.

    Attributes:
        attempts: calls of a copy.
        retries: attempts after a request's first.
        retries_denied: retries that the budget did not allow.
        fallbacks: requests that another model answered.
        no_copy: requests for a model of which no copy was available.
    """

    attempts: int = 0
    retries: int = 0
    retries_denied: int = 0
    fallbacks: int = 0
    no_copy: int = 0
