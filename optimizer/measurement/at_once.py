"""Requests to one arm, a few at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

AT_ONCE: Final = 4
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def ask_all(ask: Callable[[_Asked], _Answer], items: Sequence[_Asked]) -> list[_Answer]:
    """Answers in the order of `items`.

    Whatever ends it takes the requests back that were not sent; those that were end with their worker, which
    a cancelled comparison stops without waiting for them.
    """
    threads = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(threads.map(ask, items))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
