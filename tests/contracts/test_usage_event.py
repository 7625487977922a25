"""Usage events between releases."""

from __future__ import annotations

from dataclasses import replace

from contracts.usage_event import ADDED, UsageEvent
from tests.contracts.test_route_table import EVENT


def test_an_event_without_new_values_has_no_new_fields() -> None:
    """An older control plane refuses fields that it does not know."""
    plain = replace(UsageEvent(**EVENT), **ADDED)
    assert not ADDED.keys() & plain.to_dict().keys()
    assert UsageEvent.from_json(plain.to_json()) == plain
    thought = replace(plain, completion_tokens=9, reasoning_tokens=3)
    assert thought.to_dict().keys() & ADDED.keys() == {"reasoning_tokens"}
    assert UsageEvent.from_json(thought.to_json()) == thought
