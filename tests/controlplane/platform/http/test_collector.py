"""Answers leave reference cycles; the garbage collector runs only between answers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.platform.http.collector import CollectBetweenAnswers


class _Request:
    """In a cycle with what knows it, as Django's is with its user."""

    def __init__(self, objects: int) -> None:
        self.user = [self]
        self.page = [[] for _ in range(objects)]  # type: ignore[var-annotated]


@pytest.fixture(autouse=True)
def only_between_answers() -> Iterator[None]:
    """Python's own collections would hide whether ours runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _outlives_answer(objects: int, *, error: Exception | None = None, answers: int = 1) -> list[bool]:
    """Return for each request whether it outlived its answer."""
    made: list[weakref.ref[_Request]] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        made.append(weakref.ref(_Request(objects)))
        if error is not None:
            raise error

    application = CollectBetweenAnswers(answer)
    for _ in range(answers):
        try:
            asyncio.run(application({}, None, None))  # type: ignore[arg-type]
        except ValueError:
            assert error is not None
    return [request() is not None for request in made]


@pytest.mark.costly("fills memory with garbage")
def test_what_a_page_left_goes_once_its_answer_is_sent() -> None:
    assert _outlives_answer(5000) == [False]


@pytest.mark.costly("fills memory with garbage")
def test_also_where_the_answer_failed() -> None:
    assert _outlives_answer(5000, error=ValueError("no")) == [False]


@pytest.mark.costly("fills memory with garbage")
def test_small_answers_are_looked_through_together() -> None:
    left = _outlives_answer(1, answers=300)
    assert any(left)
    assert not all(left)
