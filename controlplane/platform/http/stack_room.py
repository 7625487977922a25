"""Reserves interpreter stack for one request, so that no hot loop crosses the end of a stack chunk.

CPython keeps a thread's call frames in chunks of 16 KiB. A call that does not fit allocates a chunk from the
operating system and frees it on return. If a page's innermost loop begins at the end of a chunk, each of its
calls costs two system calls and a page fault. A list of 50 adapters had 2,466 of them, a quarter of its time;
the depth of middleware and templates decides which page is affected.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Final, ParamSpec, TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

P = ParamSpec("P")
R = TypeVar("R")

_SLOTS: Final = 33_000
"""Slots of 8 bytes. Chunk sizes are powers of two: this leaves 256 KiB for nested calls, of which some 300
take 50 KiB. Untouched memory costs nothing."""


def with_stack_room(function: Callable[P, R]) -> Callable[P, R]:
    """Enlarge the function's frame so that it opens a new chunk with room for all nested calls."""
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_stacksize=_SLOTS)
    return function


class StackRoomMiddleware:
    """Outermost middleware; only for synchronous views, since coroutines keep their frames on the heap."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    @with_stack_room
    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self._get_response(request)
