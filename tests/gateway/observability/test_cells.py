"""The file of figures: who writes it goes on with it, who reads it sees whole series."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from gateway.observability import cells
from gateway.observability.adapters import AdapterFigures
from gateway.observability.cells import FILE, CellFile, Snapshot
from gateway.observability.exposition import render
from gateway.observability.families import BREAKER, ITL, REQUESTS, SCHEMA
from gateway.observability.figures import Counter, Gauges, Histogram, label_text
from tests.gateway.observability.conftest import Scrape


@pytest.fixture
def slot(tmp_path: Path) -> Path:
    folder = tmp_path / "000"
    folder.mkdir()
    return folder


def adapter(number: int) -> str:
    return f"t_acme.a_bot-{number}.v1.0123456789ab"


def use(figures: AdapterFigures, name: str, times: int = 1) -> None:
    for _ in range(times):
        figures.record(name, ok=True, prompt=3, cached=1, completion=2, ttft_ms=20.0)


def read_metrics(root: Path) -> Scrape:
    return Scrape(render(root).decode())


def test_the_next_owner_counts_on(slot: Path) -> None:
    first = CellFile(slot / FILE, SCHEMA)
    Counter(first, REQUESTS, model="a").add(3)
    histogram = Histogram(first, ITL, model="a")
    histogram.observe(0.02, 4)
    histogram.observe(99.0)
    # Nothing is closed: the process was killed.
    second = CellFile(slot / FILE, SCHEMA)
    Counter(second, REQUESTS, model="a").add()
    Counter(second, REQUESTS, model="b").add()
    found = read_metrics(slot.parent)
    assert found.series("requests_total") == [({"model": "a"}, 4), ({"model": "b"}, 1)]
    assert found.sum("itl_seconds_count", model="a") == 5
    assert found.sum("itl_seconds_sum", model="a") == pytest.approx(99.08)
    assert found.sum("itl_seconds_bucket", model="a", le="0.01") == 0
    assert found.sum("itl_seconds_bucket", model="a", le="0.02") == 4
    assert found.sum("itl_seconds_bucket", model="a", le="2.5") == 4
    assert found.sum("itl_seconds_bucket", model="a", le="+Inf") == 5


def test_files_are_summed(slot: Path) -> None:
    (slot.parent / "001").mkdir()
    for number, folder in enumerate((slot, slot.parent / "001"), 1):
        Counter(CellFile(folder / FILE, SCHEMA), REQUESTS, model="a").add(number)
    assert read_metrics(slot.parent).sum("requests_total") == 3


def test_another_version_s_file_is_begun_anew(slot: Path) -> None:
    Counter(CellFile(slot / FILE, "older"), REQUESTS, model="a").add(3)
    assert not list(Snapshot.all(slot.parent, SCHEMA))
    Counter(CellFile(slot / FILE, SCHEMA), REQUESTS, model="a").add()
    assert read_metrics(slot.parent).sum("requests_total") == 1


def test_a_file_cut_short_is_begun_anew(slot: Path) -> None:
    Counter(CellFile(slot / FILE, SCHEMA), REQUESTS, model="a").add(3)
    os.truncate(slot / FILE, 1000)
    assert not list(Snapshot.all(slot.parent, SCHEMA))
    CellFile(slot / FILE, SCHEMA)
    assert not read_metrics(slot.parent).series("requests_total")


def test_gauges_are_of_living_processes(slot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CellFile(slot / FILE, SCHEMA)
    gauges = Gauges(file)
    one, two = (BREAKER, label_text({"copy": "1"})), (BREAKER, label_text({"copy": "2"}))
    gauges.set_all({one: 0.0, two: 2.0})
    assert not read_metrics(slot.parent).series("breaker_state"), "no beat yet"
    file.heartbeat()
    assert read_metrics(slot.parent).values("breaker_state", "copy") == {"1", "2"}
    gauges.set_all({two: 1.0})
    assert read_metrics(slot.parent).series("breaker_state") == [({"copy": "2", "process": "000"}, 1.0)]
    # Its successor knows nothing of that copy.
    again = CellFile(slot / FILE, SCHEMA)
    Gauges(again).set_all({})
    again.heartbeat()
    assert not read_metrics(slot.parent).series("breaker_state")
    Gauges(again).set_all({one: 0.0})
    monkeypatch.setattr(cells, "ALIVE_SECONDS", 0.0)
    assert not read_metrics(slot.parent).series("breaker_state"), "silent for too long"


@pytest.mark.costly("fills a file")
def test_a_full_file_counts_where_nobody_reads(slot: Path) -> None:
    file = CellFile(slot / FILE, SCHEMA)
    for number in range(40_000):
        Counter(file, REQUESTS, model=str(number)).add()
    assert file.refused > 0
    assert read_metrics(slot.parent).sum("requests_total") == 40_000 - file.refused


def test_labels_are_escaped(slot: Path) -> None:
    text = 'a"b\\c\nd'
    Counter(CellFile(slot / FILE, SCHEMA), REQUESTS, model=text).add()
    assert read_metrics(slot.parent).values("requests_total", "model") == {text}


def test_ten_thousand_adapters_make_few_series(slot: Path) -> None:
    file = CellFile(slot / FILE, SCHEMA)
    figures = AdapterFigures(file, 50)
    for number in range(10_000):
        use(figures, adapter(number))
    found = read_metrics(slot.parent)
    assert len(found.values("adapter_requests_total", "adapter")) == 51
    assert found.sum("adapter_requests_total") == 10_000
    assert found.sum("adapter_requests_total", adapter="_others") == 9_950
    assert found.sum("adapter_tokens_total", kind="prompt") == 30_000
    assert len(found.text.splitlines()) < 51 * 8 + 20
    # An idle adapter's slot is reused by an active one.
    for _ in range(5):
        use(figures, adapter(9_999), 20)
        figures.settle()
    use(figures, adapter(9_999), 7)
    found = read_metrics(slot.parent)
    assert len(found.values("adapter_requests_total", "adapter")) <= 51
    named = found.sum("adapter_requests_total", adapter=adapter(9_999), status="ok")
    assert 7 <= named < 107, "it counts from when it was named"
    assert figures.named == 50
    assert math.isclose(
        found.sum("adapter_ttft_seconds_sum", adapter=adapter(9_999)), 0.02 * named, rel_tol=1e-9
    )


def test_two_alike_do_not_change_places_for_ever(slot: Path) -> None:
    figures = AdapterFigures(CellFile(slot / FILE, SCHEMA), 1)
    for _ in range(10):
        use(figures, adapter(1), 10)
        use(figures, adapter(2), 11)
        figures.settle()
    assert read_metrics(slot.parent).values("adapter_requests_total", "adapter") == {adapter(1), "_others"}


def test_named_adapters_outlive_their_process(slot: Path) -> None:
    use(AdapterFigures(CellFile(slot / FILE, SCHEMA), 2), adapter(1), 3)
    again = AdapterFigures(CellFile(slot / FILE, SCHEMA), 2)
    use(again, adapter(1))
    assert read_metrics(slot.parent).sum("adapter_requests_total", adapter=adapter(1)) == 4


def test_no_adapter_need_be_named(slot: Path) -> None:
    figures = AdapterFigures(CellFile(slot / FILE, SCHEMA), 0)
    use(figures, adapter(1))
    figures.settle()
    assert read_metrics(slot.parent).values("adapter_requests_total", "adapter") == {"_others"}
