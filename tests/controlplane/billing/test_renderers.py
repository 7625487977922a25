"""The usage report as JSON and CSV: each value under its name, whatever names are; formulas defused."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json

import pytest

from controlplane.billing.api import UsageReportSerializer
from controlplane.billing.renderers import UsageCsvRenderer, UsageJsonRenderer
from controlplane.billing.usage_report import UsageReport, money_text

_HOSTILE = ('say "hi"\\', "two\nlines\x00\x1f", "</script>%s{}%%\u2028\U0001f600é")


def hostile(*, groups: int = 3) -> UsageReport:
    """Three rows by up to three names."""
    return UsageReport(
        start=dt.date(2026, 3, 1),
        end=dt.date(2026, 3, 3),
        group_by=("key", "alias", "adapter")[:groups],
        currency="USD",
        groups=(_HOSTILE, _HOSTILE[::-1], ("", "b", "b"))[:groups],
        requests=(1, 0, 10**12),
        prompt_tokens=(22, 0, 2**62),
        cached_tokens=(3, 0, 0),
        completion_tokens=(444, 7, 1),
        reasoning_tokens=(55, 0, 1),
        images=(0, 6, 0),
        nano=(5_000, 0, 123_456_789_012_345_678_901),
        unpriced=(0, 2, 0),
    )


def test_each_value_stands_under_its_name() -> None:
    report = UsageReport(
        start=dt.date(2026, 3, 1),
        end=dt.date(2026, 3, 3),
        group_by=("day", "adapter"),
        currency="USD",
        groups=(("2026-03-01", "2026-03-02"), ("=pirate()", "b")),
        requests=(1, 1),
        prompt_tokens=(22, 22),
        cached_tokens=(3, 3),
        completion_tokens=(444, 444),
        reasoning_tokens=(55, 0),
        images=(6, 0),
        nano=(5_000, 0),
        unpriced=(0, 2),
    )
    first, second = csv.DictReader(io.StringIO(UsageCsvRenderer().render(report).decode()))
    assert first == {
        "day": "2026-03-01",
        "adapter": "'=pirate()",
        "requests": "1",
        "prompt_tokens": "22",
        "cached_tokens": "3",
        "completion_tokens": "444",
        "reasoning_tokens": "55",
        "images": "6",
        "price": "0.000005000",
        "currency": "USD",
        "unpriced": "false",
    }
    assert list(first)[-2:] == ["reasoning_tokens", "images"], "the newest column comes last"
    assert (second["price"], second["unpriced"]) == ("", "true")


@pytest.mark.parametrize("groups", [0, 1, 2, 3])
def test_json_says_what_the_schema_does(groups: int) -> None:
    """JSON written piece by piece equals the serializer's output, for any values."""
    report = hostile(groups=groups)
    told = json.loads(UsageJsonRenderer().render(report))
    assert told == json.loads(json.dumps(UsageReportSerializer(report).data))
    assert [list(row["group"].values()) for row in told["rows"]] == [
        list(row.group.values()) for row in report.rows
    ]


def test_json_of_a_report_without_rows() -> None:
    report = UsageReport(
        dt.date(2026, 3, 1), dt.date(2026, 3, 3), ("day",), "USD", ((),), (), (), (), (), (), (), (), ()
    )
    told = json.loads(UsageJsonRenderer().render(report))
    assert (told["rows"], told["total"]["requests"], told["total"]["price"]) == ([], 0, "0.000000000")


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "0.000000000"),
        (1, "0.000000001"),
        (999_999_999, "0.999999999"),
        (10**9, "1.000000000"),
        (12_345_678_901, "12.345678901"),
    ],
)
def test_nano_units_as_text(nano: int, text: str) -> None:
    assert money_text(nano) == text


def test_an_error_is_one_line() -> None:
    errors = {"errors": [{"code": "invalid", "detail": "=1+1 is no day", "attr": "start"}]}
    assert (
        UsageCsvRenderer().render(errors).decode() == "code,detail,attr\r\ninvalid,'=1+1 is no day,start\r\n"
    )
