"""How long requests waited, and how their tokens came: observed by the engine, read by the metrics."""

from __future__ import annotations

from collections.abc import Iterable

from worker_engine.histogram import Histogram
from worker_engine.sequence import Sequence


class Latencies:
    """Queue time, time to first token (TTFT) and inter-token latency (ITL), in seconds."""

    def __init__(self) -> None:
        self.queue, self.ttft, self.itl = Histogram(), Histogram(), Histogram()

    def record(self, sequences: Iterable[Sequence], now: float) -> None:
        """Each of `sequences` got a token at `now`."""
        for sequence in sequences:
            if sequence.last_token is not None:
                self.itl.observe(now - sequence.last_token)
            else:
                self.ttft.observe(now - sequence.arrived)
                self.queue.observe((sequence.admitted or now) - sequence.arrived)
            sequence.last_token = now
