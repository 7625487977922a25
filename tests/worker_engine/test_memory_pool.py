"""Whatever is asked of the pool: pages are held once, page 0 never, and none is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from worker_engine.memory_pool import MemoryPool, pages_for


class Pool(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = MemoryPool(12)
        self.held: list[list[int]] = []
        self.fresh: set[int] = set()

    @rule(count=st.integers(0, 14))
    def allocate(self, count: int) -> None:
        if self.pool.can_allocate(count):
            pages = self.pool.allocate(count)
            assert len(pages) == count
            self.held.append(pages)
            self.fresh |= set(pages)
        else:
            with pytest.raises(ValueError, match="pages asked for"):
                self.pool.allocate(count)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.held:
            pages = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.pool.free(pages)
            if pages:
                with pytest.raises(ValueError, match="is not held"):
                    self.pool.free(pages[:1])

    @rule()
    def take_fresh(self) -> None:
        assert set(self.pool.take_fresh()) == self.fresh
        self.fresh = set()

    @invariant()
    def every_page_has_one_owner(self) -> None:
        owned = [page for pages in self.held for page in pages]
        assert len(owned) == len(set(owned)) == self.pool.num_used
        assert 0 not in owned
        assert self.pool.num_used + self.pool.num_free == self.pool.capacity == 11


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase


def test_pages_for() -> None:
    assert [pages_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
