"""Presets show only their stored runs, by REST and on the page; without one they show no figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from contracts.recipes.recipe import Preset, Target, preset
from controlplane.optimization.preset_runs import preset_runs
from controlplane.tenants.services import user_create
from tests.conftest import ROOT
from tests.controlplane.optimization.measured import preset_file

PAGE = "/staff/optimizations"


@pytest.fixture
def stored(settings: Settings, tmp_path: Path) -> Path:
    """A stored run of the demo model; the preset balanced has changed since."""
    path = tmp_path / "presets-avx2.json"
    path.write_text(json.dumps(preset_file()))
    settings.PRESET_RUN_FOLDER = tmp_path
    return path


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def test_rest_tells_each_presets_own_figures(staff: Client, stored: Path) -> None:
    rows = {row["name"]: row for row in staff.get("/api/v1/optimization-presets?hardware=cpu").json()}
    (run,) = rows["lowest_cost"]["stored_runs"]
    assert (run["model"], run["date"], run["rounds"]) == ("smollm2-135m-instruct", "2026-11-22 13:00 UTC", 12)
    assert run["machine"] == {"cpu": "A processor", "cores": 2}
    assert (run["weights_bytes"], run["original_weights_bytes"]) == (162e6, 269e6)
    assert (run["perplexity"], run["perplexity_ratio"]) == (18.0, pytest.approx(18 / 17))
    one, four = run["levels"]
    assert (one["concurrency"], one["tokens_per_s"], one["original_tokens_per_s"]) == (1, 45.0, 30.0)
    assert one["beside_original"] == {"ratio": 1.5, "low": 1.42, "high": 1.57, "verdict": "difference shown"}
    assert four["beside_original"]["verdict"] == "no difference shown"
    assert rows["balanced"]["stored_runs"] == [], "the run is of another recipe"


def test_another_target_has_no_stored_run(staff: Client, stored: Path) -> None:
    rows = staff.get("/api/v1/optimization-presets?hardware=sm90").json()
    assert [row["stored_runs"] for row in rows] == [[]] * 3
    page = staff.get(f"{PAGE}/check", {"hardware": "sm90"}).content.decode()
    assert (page.count("no stored run"), page.count("hx-swap-oob")) == (3, 1)
    wrong = staff.get(f"{PAGE}/check", {"hardware": "abacus"}).content.decode()
    assert "no stored run" not in wrong


def test_the_page_shows_them_beside_the_menu(staff: Client, stored: Path) -> None:
    page = staff.get(f"{PAGE}/new").content.decode()
    for text in (
        "1.50× (1.42–1.57)",
        "18.00 (1.059×)",
        "A processor, 2 cores, 2026-11-22 13:00 UTC",
        "smollm2-135m-instruct",
    ):
        assert text in page, text
    assert page.count("no stored run") == 1
    assert "hx-swap-oob" not in page


def test_each_kind_of_processor_has_its_run(staff: Client, stored: Path) -> None:
    other = preset_file()
    other["comparison"]["machine"] |= {"cpu": "Another processor", "instructions": "avx512_bf16"}
    stored.with_name("presets-avx512_bf16.json").write_text(json.dumps(other))
    stored.with_name("presets.json").write_text("not a stored run by its name")
    rows = {row["name"]: row for row in staff.get("/api/v1/optimization-presets?hardware=cpu").json()}
    assert [run["machine"]["cpu"] for run in rows["lowest_cost"]["stored_runs"]] == [
        "A processor",
        "Another processor",
    ]
    page = staff.get(f"{PAGE}/new").content.decode()
    assert page.count("Another processor (avx512_bf16), 2 cores") == 2
    assert page.count("no stored run") == 1


def test_without_the_file_nothing_is_claimed(staff: Client, stored: Path) -> None:
    stored.unlink()
    assert staff.get(f"{PAGE}/new").content.decode().count("no stored run") == 3
    rows = staff.get("/api/v1/optimization-presets").json()
    assert [row["stored_runs"] for row in rows] == [[]] * 3


def test_another_file_is_not_taken_for_a_run(stored: Path) -> None:
    stored.write_text('{"schema": "graftwork.optimization.comparison/1"}')
    with pytest.raises(ValueError, match=r"is no graftwork.optimization.presets/1"):
        preset_runs(Preset.BALANCED, preset(Preset.BALANCED, Target()))


def test_what_the_product_comes_with_is_of_the_presets_that_hold() -> None:
    """A changed preset invalidates its figures: the run must be repeated or removed."""
    files = sorted((ROOT / "benchmarks" / "results").glob("presets-*.json"))
    assert [path.stem for path in files] == ["presets-avx2", "presets-avx512_bf16"]
    for name in Preset:
        runs = preset_runs(name, preset(name, Target()))
        assert len(runs) == len(files), name
        for run in runs:
            assert run["perplexity"] > 1
            assert all(level["tokens_per_s"] > 0 for level in run["levels"])
