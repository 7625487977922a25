"""Why an event from outside does not count.

CloudEventError
├── EventRefusedError   the event is wrong; its sender has to mend it
└── EventDeadError      it may become right: it waits among the dead letters
"""

from __future__ import annotations


class CloudEventError(Exception):
    """Root of the tree. `id` and `source` as far as the event has them."""

    def __init__(self, reason: str, *, id: str = "", source: str = "") -> None:
        super().__init__(reason)
        self.id, self.source = id, source


class EventRefusedError(CloudEventError):
    """Malformed, impossible or not the sender's to report: it is kept nowhere."""


class EventDeadError(CloudEventError):
    """Names what is not known here (yet), or a day that is no longer kept."""
