"""Python's garbage collector in the web process: it looks between answers, not within them.

Django leaves each request in cycles, with its user, its messages and what its page was made of. By itself the
collector comes when so many objects are there, in the midst of whichever page made the last of them.
"""

from __future__ import annotations

import gc
from typing import Final

from controlplane.platform.http.body_limit import Application, Receive, Scope, Send

_YOUNG: Final = 500
"""Objects since the last look below which nobody looks: a file's answer leaves none."""
_WHOLE: Final = 1000
"""Answers until everything is looked through that came since the start, some 15 ms for a console's caches."""


class CollectBetweenAnswers:
    """Looks through what is new once an answer is sent: 0.2 ms after a page, which the next one may wait.

    Outermost of an ASGI application: when it returns, nobody needs the request any more.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        self._answers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._application(scope, receive, send)
        finally:
            self._answers += 1
            if self._answers % _WHOLE == 0:
                gc.collect()
            elif gc.get_count()[0] > _YOUNG:
                gc.collect(1)


def heap_freeze() -> None:
    """Once all is imported: what is loaded stays for ever, so the collector need not look at it.

    Within an answer it comes only where one makes very many objects: with what is loaded in sight, and by
    Python's own thresholds, it looked at the whole heap at every tenth page, for 0.2 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
