"""The usage report as CSV: head and values in their columns, formulas defused."""

from __future__ import annotations

import csv
import io

from controlplane.billing.renderers import UsageCsvRenderer


def test_each_value_stands_under_its_name() -> None:
    row = {
        "group": {"day": "2026-03-01", "adapter": "=pirate()"},
        "requests": 1, "prompt_tokens": 22, "cached_tokens": 3, "completion_tokens": 444,
        "price": "0.000005000", "unpriced": False,
    }  # fmt: skip
    unpriced = {**row, "group": {"day": "2026-03-02", "adapter": "b"}, "price": None, "unpriced": True}
    data = {"group_by": ["day", "adapter"], "currency": "USD", "rows": [row, unpriced]}
    first, second = csv.DictReader(io.StringIO(UsageCsvRenderer().render(data).decode()))
    assert first == {
        "day": "2026-03-01", "adapter": "'=pirate()", "requests": "1", "prompt_tokens": "22",
        "cached_tokens": "3", "completion_tokens": "444", "price": "0.000005000", "currency": "USD",
        "unpriced": "false",
    }  # fmt: skip
    assert (second["price"], second["unpriced"]) == ("", "true")
