"""Priced items, and the units in which their quantities are counted."""

from __future__ import annotations

from typing import Final

INPUT: Final = "input"
CACHED_INPUT: Final = "cached_input"
OUTPUT: Final = "output"
REASONING: Final = "reasoning"
"""Output tokens of the thought, where they have a price of their own; else they are OUTPUT."""
REQUEST: Final = "request"
ADAPTER_HOUR: Final = "adapter_hour"
GPU_HOUR: Final = "gpu_hour"
STORAGE_GB_HOUR: Final = "storage_gb_hour"

PER: Final = {
    INPUT: 1,
    CACHED_INPUT: 1,
    OUTPUT: 1,
    REASONING: 1,
    REQUEST: 1,
    ADAPTER_HOUR: 3600,
    GPU_HOUR: 3600,
    STORAGE_GB_HOUR: 3600 * 10**9,
}
"""Item -> quantity that one unit price covers.

Tokens and requests count one by one. Adapter- and GPU-hours are counted in seconds, GB-hours in seconds
times bytes.
"""
TIMED: Final = frozenset((ADAPTER_HOUR, GPU_HOUR, STORAGE_GB_HOUR))
"""Items that are billed only where a price book in force has a price for them."""

TITLES: Final = {
    INPUT: "Input tokens",
    CACHED_INPUT: "Cached input tokens",
    OUTPUT: "Output tokens",
    REASONING: "Reasoning tokens",
    REQUEST: "Requests",
    ADAPTER_HOUR: "Adapter hosting, seconds",
    GPU_HOUR: "GPU time, seconds",
    STORAGE_GB_HOUR: "Storage, byte-seconds",
}


def title(item: str) -> str:
    """Return an item's display name."""
    return TITLES.get(item, item)


def amount(item: str, *, quantity: int, unit_nano: int) -> int:
    """Return nano-units for `quantity` at `unit_nano` per `PER[item]`, rounded half up.

    Tokens and requests need no rounding. Time is rounded here only, once per day and line.
    """
    per = PER[item]
    return (2 * quantity * unit_nano + per) // (2 * per)
