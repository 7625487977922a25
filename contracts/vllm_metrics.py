"""Parses what vLLM reports at `/metrics`: its requests, and the adapters that have requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

_SAMPLE: Final = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|lora_requests_info)(\{[^\n]*\})? ([^ \n]+)", re.M
)
_ENGINE: Final = re.compile(rb'[{,]engine="([^"\n]*)"')
_ADAPTERS: Final = re.compile(rb'(running|waiting)_lora_adapters="([^"\n]*)"')
_SLOTS: Final = re.compile(rb'[{,]max_lora="([0-9]{1,6})"')
_MOST: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class VllmMetrics:
    """Sums over a server's engines.

    Attributes:
        pending: requests that run or wait.
        adapters: names of the adapters with running or waiting requests. Idle ones are not reported, although
            they are in memory.
        running: those of them with running requests, which are in device memory.
        slots: adapters that fit into device memory at once (`--max-loras`); None if it is not reported.
    """

    pending: int
    adapters: frozenset[str] = frozenset()
    slots: int | None = None
    running: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Parse the text. Raises ValueError if it is not vLLM's."""
        pending, counted = 0.0, False
        newest: dict[bytes, tuple[float, bytes]] = {}
        for name, labels, text in _SAMPLE.findall(body):
            value = float(text)
            if name == b"lora_requests_info":
                # One series for each set of adapters so far; its value is the time of that set.
                engine = match[1] if (match := _ENGINE.search(labels)) else b""
                newest[engine] = max(newest.get(engine, (0.0, b"")), (value, labels))
            else:
                pending, counted = pending + value, True
        if not counted or not 0 <= pending < _MOST:
            raise ValueError("these are not vLLM's metrics")
        labels_now = [labels for _, labels in newest.values()]
        found = [
            (state, name.decode(errors="replace"))
            for labels in labels_now
            for state, part in _ADAPTERS.findall(labels)
            for name in part.split(b",")
            if name
        ]
        slots = [int(match[1]) for labels in labels_now if (match := _SLOTS.search(labels))]
        return cls(
            int(pending),
            frozenset(name for _, name in found),
            min(slots, default=None),
            frozenset(name for state, name in found if state == b"running"),
        )
