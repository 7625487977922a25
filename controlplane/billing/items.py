"""What is priced, and the unit that quantities of it are counted in."""

from __future__ import annotations

from typing import Final

INPUT: Final = "input"
CACHED_INPUT: Final = "cached_input"
OUTPUT: Final = "output"
REQUEST: Final = "request"
ADAPTER_HOUR: Final = "adapter_hour"
GPU_HOUR: Final = "gpu_hour"
STORAGE_GB_HOUR: Final = "storage_gb_hour"

PER: Final = {
    INPUT: 1,
    CACHED_INPUT: 1,
    OUTPUT: 1,
    REQUEST: 1,
    ADAPTER_HOUR: 3600,
    GPU_HOUR: 3600,
    STORAGE_GB_HOUR: 3600 * 10**9,
}
"""Item -> how much of its quantity a price is for: tokens and requests one by one; adapter- and GPU-hours are
counted in seconds, GB-hours in seconds times bytes."""
TIMED: Final = frozenset((ADAPTER_HOUR, GPU_HOUR, STORAGE_GB_HOUR))
"""What is billed at all only where some book in force has a price of it."""

TITLES: Final = {
    INPUT: "Input tokens",
    CACHED_INPUT: "Cached input tokens",
    OUTPUT: "Output tokens",
    REQUEST: "Requests",
    ADAPTER_HOUR: "Adapter hosting, seconds",
    GPU_HOUR: "GPU time, seconds",
    STORAGE_GB_HOUR: "Storage, byte-seconds",
}


def amount(item: str, *, quantity: int, unit_nano: int) -> int:
    """Nano-units of `quantity` at `unit_nano` for each `PER`, to the nearest one, halves up.

    Of tokens and requests nothing is rounded; of time once a day and line, here and nowhere else.
    """
    per = PER[item]
    return (2 * quantity * unit_nano + per) // (2 * per)
