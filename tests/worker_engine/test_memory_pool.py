"""Whatever is asked of the pool: holders are counted, page 0 stays, none is lost, the oldest leaves first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from worker_engine.memory_pool import MemoryPool, pages_for


class Pool(RuleBasedStateMachine):
    """Compare the pool with a model of it: lists of holders' pages and of parked pages, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = MemoryPool(12)
        self.held: list[list[int]] = []
        self.parked: list[tuple[int, list[int]]] = []
        self.fresh: set[int] = set()
        self.forgotten: list[int] = []
        self.number = 0

    @property
    def num_free(self) -> int:
        return 11 - len({page for pages in self.held for page in pages})

    @rule(count=st.integers(0, 14), clear=st.booleans())
    def allocate(self, count: int, clear: bool) -> None:
        assert self.pool.can_allocate(count) == (count <= self.num_free)
        if count > self.num_free:
            with pytest.raises(ValueError, match="pages asked for"):
                self.pool.allocate(count)
            return
        expected = [number for number, _ in self.parked]
        pages = self.pool.allocate(count, clear=clear)
        assert len(pages) == count
        assert self.forgotten == expected[: len(self.forgotten)], "not the longest parked was taken"
        self.parked = self.parked[len(self.forgotten) :]
        self.forgotten = []
        self.held.append(pages)
        # A page that its new owner fills must not be cleared later, whatever its history.
        self.fresh = self.fresh | set(pages) if clear else self.fresh - set(pages)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        if self.held:
            pages = data.draw(st.sampled_from(self.held))
            for page in pages:
                self.pool.share(page)
            self.held.append(list(pages))

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.held:
            pages = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.pool.free(pages)
            if pages and not any(pages[0] in other for other in self.held):
                with pytest.raises(ValueError, match="is not held"):
                    self.pool.free(pages[:1])
                with pytest.raises(ValueError, match="is not held"):
                    self.pool.share(pages[0])

    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        if not self.held:
            return
        pages = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.number += 1
        number = self.number
        if any(page in other for page in pages for other in self.held):
            with pytest.raises(ValueError, match="one holder each"):
                self.pool.park(number, pages, lambda: None)
            self.held.append(pages)
            return
        self.pool.park(number, pages, lambda: self.forgotten.append(number))
        self.parked.append((number, pages))

    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        if self.parked:
            number, pages = self.parked.pop(data.draw(st.integers(0, len(self.parked) - 1)))
            assert list(self.pool.unpark(number)) == pages
            assert not self.pool.is_parked(number)
            self.held.append(pages)

    @rule()
    def take_fresh(self) -> None:
        assert set(self.pool.take_fresh()) == self.fresh
        self.fresh = set()

    @invariant()
    def every_page_has_its_holders(self) -> None:
        owned = [page for pages in self.held for page in pages]
        parked = [page for _, pages in self.parked for page in pages]
        assert all(self.pool.holders(page) == owned.count(page) for page in range(12))
        assert 0 not in owned
        assert not set(owned) & set(parked)
        assert len(set(owned)) == self.pool.num_used
        assert len(parked) == self.pool.num_idle
        assert self.pool.num_used + self.pool.num_free == self.pool.capacity == 11


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase


def test_no_more_is_evicted_than_needed() -> None:
    pool, forgotten = MemoryPool(9), []
    for number in range(4):
        pool.park(number, pool.allocate(2), lambda number=number: forgotten.append(number))  # type: ignore[misc]
    pool.allocate(3)
    assert forgotten == [0, 1]
    assert pool.num_free == 5


def test_a_key_stands_for_what_was_parked_first() -> None:
    pool = MemoryPool(4)
    first = pool.allocate(1)
    pool.park("key", first, lambda: None)
    second = pool.allocate(1)
    with pytest.raises(ValueError, match="the key be new"):
        pool.park("key", second, lambda: None)
    assert pool.holders(second[0]) == 1
    assert pool.unpark("key") == first


def test_pages_for() -> None:
    assert [pages_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
