"""Paginated lists, fetched page by page as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from graftwork.transport import Transport

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T]):
    """One page; `next` is the address of the next one."""

    results: list[T]
    next: str | None = None
    previous: str | None = None


def pages(transport: Transport, kind: type[T], path: str, **query: Any) -> Iterator[T]:
    """Yields every row of a list, in order. Raises GraftworkError at the page that fails."""
    page = transport.read(Page[kind], path, **query)  # type: ignore[valid-type]  # a type made at run time
    while True:
        yield from page.results
        if page.next is None:
            return
        page = transport.read(Page[kind], _relative(page.next))  # type: ignore[valid-type]


def _relative(address: str) -> str:
    """Returns the path below our own base URL: a server behind a proxy may know another address of itself."""
    return address.partition("/api/v1")[2]
