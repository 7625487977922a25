"""Options by which each copy reports usage, learnt from its refusals."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from gateway.backends.upstream import Refusal

logger = logging.getLogger(__name__)

Stream = TypeVar("Stream")

_OPTIONS: Final[tuple[Mapping[str, Any], ...]] = (
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True},
)
"""From exact at every moment, over exact at the end, to none, in which case the gateway estimates."""
_NAMED: Final = (b"continuous_usage_stats", b"stream_options", b"include_usage")
_STATUSES: Final = frozenset({400, 422, 424})
REMEMBER_SECONDS: Final = 600.0
"""After this time the best options are tried again, since a newer server may have replaced the old one."""


class UsageOptions:
    """The usage options of streaming requests, by copy."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    async def ask(
        self, copy_id: str, whole: bool, send: Callable[[Mapping[str, Any]], Awaitable[Stream | Refusal]]
    ) -> Stream | Refusal:
        """Send a request for events with the best options that the copy accepts.

        If a refusal names the options, fewer of them are sent. Only a success is remembered: a refusal may
        quote the client, who must not decide how usage is counted.

        Args:
            whole: True if the client wants no events. If the server cannot stream the request, such as one
                for log probabilities of a prompt, it is sent without options. That is never remembered.
        """
        level, until = self._known.get(copy_id, (0, 0.0))
        first = level = level if time.monotonic() < until else 0
        answer = await send(_OPTIONS[level])
        while isinstance(answer, Refusal) and level + 1 < len(_OPTIONS) and _names(answer, *_NAMED):
            level += 1
            answer = await send(_OPTIONS[level])
        if level > first and not isinstance(answer, Refusal):
            self._known[copy_id] = level, time.monotonic() + REMEMBER_SECONDS
            logger.warning("copy %s supports only these usage options: %s", copy_id, _OPTIONS[level])
        if whole and isinstance(answer, Refusal) and _names(answer, b"stream"):
            return await send({})
        return answer


def _names(refusal: Refusal, *options: bytes) -> bool:
    return refusal.status in _STATUSES and any(option in refusal.body for option in options)
