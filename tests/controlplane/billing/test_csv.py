"""The usage report as CSV: head and values in their columns, formulas defused."""

from __future__ import annotations

import csv
import datetime as dt
import io

from controlplane.billing.renderers import UsageCsvRenderer
from controlplane.billing.usage_report import UsageReport


def test_each_value_stands_under_its_name() -> None:
    report = UsageReport(
        start=dt.date(2026, 3, 1), end=dt.date(2026, 3, 3), group_by=("day", "adapter"), currency="USD",
        groups=(("2026-03-01", "2026-03-02"), ("=pirate()", "b")), requests=(1, 1), prompt_tokens=(22, 22),
        cached_tokens=(3, 3), completion_tokens=(444, 444), nano=(5_000, 0), unpriced=(0, 2),
    )  # fmt: skip
    first, second = csv.DictReader(io.StringIO(UsageCsvRenderer().render(report).decode()))
    assert first == {
        "day": "2026-03-01", "adapter": "'=pirate()", "requests": "1", "prompt_tokens": "22",
        "cached_tokens": "3", "completion_tokens": "444", "price": "0.000005000", "currency": "USD",
        "unpriced": "false",
    }  # fmt: skip
    assert (second["price"], second["unpriced"]) == ("", "true")


def test_an_error_is_one_line() -> None:
    errors = {"errors": [{"code": "invalid", "detail": "=1+1 is no day", "attr": "start"}]}
    assert (
        UsageCsvRenderer().render(errors).decode() == "code,detail,attr\r\ninvalid,'=1+1 is no day,start\r\n"
    )
