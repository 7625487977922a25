"""One load that every arm meets in a round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """So many streams at once, each request sent when another has ended; or a trace's arrivals.

    Attributes:
        streams: 0 where arrivals are replayed.
        speed: as many times as fast as the trace; 0 where streams take turns.
    """

    streams: int = 0
    speed: float = 0.0

    @property
    def name(self) -> str:
        """In a result's figures: 4 for streams, 4x for a speed."""
        return f"{self.speed:g}x" if self.speed else str(self.streams)
