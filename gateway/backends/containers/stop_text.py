"""Cuts a stop sequence off the end of a streamed text, which OpenAI's answers do not contain."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Holds back the end of the text while it may be the beginning of a stop sequence."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> str:
        """Add text; return what is certainly not part of a stop sequence."""
        self._held += text
        keep = min(self._longest, len(self._held))
        while keep and not self._may_begin(self._held[-keep:]):
            keep -= 1
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def end(self, *, stopped: bool) -> str:
        """Return the rest; without the stop sequence if that ended the text."""
        held, self._held = self._held, ""
        found = [stop for stop in self._stops if stopped and held.endswith(stop)]
        return held[: len(held) - max(map(len, found), default=0)]

    def _may_begin(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stops)
