"""Why an event from outside does not count.

CloudEventError
├── EventRefusedError   the event is invalid; its sender must correct it
└── EventDeadError      it may become valid later: it is kept as a dead letter
"""

from __future__ import annotations


class CloudEventError(Exception):
    """Root of the tree. `id` and `source` are as far as known."""

    def __init__(self, reason: str, *, id: str = "", source: str = "") -> None:
        super().__init__(reason)
        self.id, self.source = id, source


class EventRefusedError(CloudEventError):
    """Malformed, impossible, or not allowed to its sender; it is not stored."""


class EventDeadError(CloudEventError):
    """Names something unknown (yet), or a day that is no longer kept; it becomes a dead letter."""
