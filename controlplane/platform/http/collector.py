"""Runs Python's garbage collector between responses instead of within them.

Django leaves each request in reference cycles, with its user, its messages and its page's objects. By default
the collector runs when its threshold of objects is reached, in the middle of a response.
"""

from __future__ import annotations

import gc
from typing import Final

from controlplane.platform.http.body_limit import Application, Receive, Scope, Send

_YOUNG: Final = 500
"""Minimum of new objects for a collection: the response of a static file leaves none."""
_WHOLE: Final = 1000
"""Responses between full collections, which take some 15 ms with the console's caches."""


class CollectBetweenAnswers:
    """Collects new objects after each response: 0.2 ms after a page, which may delay the next one.

    Outermost ASGI middleware: when the application returns, the request is no longer needed.
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
    """Exempt all loaded objects from collection, and raise the thresholds; call it after all imports.

    With Python's default thresholds the collector scanned the whole heap at every tenth page, for 0.2 s.
    Now it runs within a response only if that response makes very many objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
