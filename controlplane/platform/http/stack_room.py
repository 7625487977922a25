"""Room for the calls of one request, so that none of them lies at the end of what is there.

CPython keeps the frames of a thread's calls in chunks of 16 KiB. A call that does not fit gets a chunk from
the operating system, which has it back when the call returns: where a page's innermost loop happens to begin
at the end of a chunk, each of its calls costs two system calls and a page fault. A list of 50 adapters had
2,466 of them, a quarter of its time; its depth in middleware and templates decides which page it meets.
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
"""Values of 8 bytes. A chunk is a power of two: of this one 256 KiB are left to the calls within, and
some 300 of them in one another take 50. What nobody touches costs nothing."""


def with_stack_room(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose frame is so large that it opens a chunk of its own, with room for all calls within."""
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_stacksize=_SLOTS)
    return function


class StackRoomMiddleware:
    """Outermost, and for synchronous handling alone: what is asynchronous keeps its frames elsewhere."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    @with_stack_room
    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self._get_response(request)
