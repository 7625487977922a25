"""The operator's pages of optimization in a real browser, wide and narrow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Page, Route, expect
from pytest_django import Settings

from controlplane.catalog.digests import digest_run
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import variant_create
from controlplane.deployments.models import Deployment, DeploymentRollout
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.optimization.comparisons import comparison_create
from controlplane.optimization.models import Artifact, ComparisonRun, OptimizationJob
from controlplane.optimization.recipes import recipe_read
from controlplane.optimization.services import job_create
from tests.controlplane.console.conftest import Team
from tests.controlplane.console.test_browser import Open, open_page
from tests.controlplane.optimization.measured import preset_file, replayed, result

__all__ = ["open_page"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
PAGE = "/staff/optimizations"


@pytest.fixture
def staffed(acme: Team, base: BaseModel) -> BaseModel:
    """The user is staff; the base model has digests and a deployment that serves it."""
    acme.user.is_staff = True
    acme.user.save()
    digest_run(base_model_id=base.pk)
    deployment_create(name="tiny", target=target_create(name="here", kind="local"), base_model=base)
    Deployment.objects.update(status="serving")
    base.refresh_from_db()
    return base


def shot(page: Page, name: str) -> None:
    """Save a screenshot if GRAFTWORK_TEST_SHOTS names a folder."""
    if folder := os.environ.get("GRAFTWORK_TEST_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def fits(page: Page, name: str) -> None:
    """Neither width of the page scrolls sideways."""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        shot(page, f"{name}-{width}")
        assert over <= 0, (name, width, over)


def test_what_presets_are_worth_follows_the_hardware(
    open_page: Open, staffed: BaseModel, settings: Settings, tmp_path: Path
) -> None:
    settings.PRESET_RUN_FOLDER = tmp_path
    (tmp_path / "presets-avx2.json").write_text(json.dumps(preset_file()))
    page = open_page(f"{PAGE}/new")
    worth = page.get_by_test_id("preset-runs")
    expect(worth).to_contain_text("1.50× (1.42–1.57)")
    fits(page, "preset-runs")
    page.get_by_label("Hardware", exact=True).select_option("sm90")
    expect(worth).not_to_contain_text("1.50×")
    expect(worth).to_contain_text("no stored run")
    page.get_by_label("Hardware", exact=True).select_option("cpu")
    expect(worth).to_contain_text("1.50× (1.42–1.57)")


def test_refusals_come_while_one_chooses(open_page: Open, staffed: BaseModel) -> None:
    page = open_page(f"{PAGE}/new")
    page.get_by_test_id("base").select_option(staffed.name)
    expect(page.get_by_test_id("check")).to_contain_text("Compatible options.")
    page.get_by_test_id("preset-own").check()
    page.get_by_test_id("quantization").select_option("int8")
    page.get_by_test_id("speculation").select_option("eagle")
    expect(page.get_by_test_id("refusals")).to_contain_text("EAGLE heads are trained and served by SageMaker")
    fits(page, "new")
    page.get_by_test_id("speculation").select_option("none")
    expect(page.get_by_test_id("check")).to_contain_text("Compatible options.")
    page.get_by_test_id("optimize").click()
    page.wait_for_url(f"**{PAGE}/*/")
    expect(page.get_by_test_id("status")).to_have_text("Queued")


def test_a_choice_made_while_an_answer_is_on_its_way_is_answered(open_page: Open, staffed: BaseModel) -> None:
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    page = open_page(f"{PAGE}/new")
    page.get_by_test_id("preset-own").check()
    page.route("**/optimizations/check?*", hold_the_first)
    with page.expect_request("**/optimizations/check?*"):
        page.get_by_test_id("base").select_option(staffed.name)
    page.get_by_test_id("speculation").select_option("eagle")
    held[0].continue_()
    expect(page.get_by_test_id("refusals")).to_contain_text("EAGLE heads are trained and served by SageMaker")


def test_a_job_is_followed_to_its_deployment(open_page: Open, staffed: BaseModel) -> None:
    job, _ = job_create(base_model=staffed, recipe=recipe_read({"quantization": "int8"}))
    jobs = OptimizationJob.objects.filter(pk=job.pk)
    lines = "".join(f"12:00:{second:02d} info: layer {second} of 30 quantized\n" for second in range(30))
    jobs.update(
        status="running",
        phase="checkpoint",
        percent=41.5,
        eta_seconds=95,
        started_at=timezone.now(),
        host="optimizer-1.example",
        attempts=1,
        log_tail=lines,
        lease_owner="x",
        lease_until=timezone.now(),
    )
    page = open_page(f"{PAGE}/{job.pk}/")
    expect(page.get_by_test_id("percent")).to_have_text("41.5 %")
    fits(page, "running")
    jobs.update(percent=77.0)
    expect(page.get_by_test_id("percent")).to_have_text("77.0 %", timeout=10_000)
    digest = "ab" * 32
    artifact = Artifact.objects.create(
        pk=digest,
        state="stored",
        uri=f"file:///var/artifacts/optimized/{digest}/",
        size=162_000_000,
        files={"checkpoint/model.safetensors": "cd" * 32},
    )
    variant = variant_create(base_model=staffed, name="int8", dtype="bfloat16", source="/models/int8")
    jobs.update(
        status="done",
        variant=variant,
        artifact=artifact,
        percent=100,
        ended_at=timezone.now(),
        result={},
        reason="variant int8 of the base",
    )
    expect(page.get_by_test_id("variant")).to_have_text("int8", timeout=10_000)
    fits(page, "done")
    page.get_by_test_id("deploy").click()
    page.wait_for_url("**/staff/deployments/tiny/")
    assert DeploymentRollout.objects.get().after["variant"] == "int8"
    page.goto(f"{PAGE}/")
    fits(page, "list")


def test_a_comparison_is_read(open_page: Open, staffed: BaseModel) -> None:
    for name in ("int8", "awq-int4"):
        variant_create(base_model=staffed, name=name, dtype="int8", source=f"/models/{name}")
    arms = [{"variant": ""}, {"variant": "int8"}, {"variant": "awq-int4"}]
    run, _ = comparison_create(base_model=staffed, arms=arms)
    ComparisonRun.objects.filter(pk=run.pk).update(
        status="done", result=result(), percent=100, phase="rounds"
    )
    page = open_page(f"/staff/comparisons/{run.pk}/")
    expect(page.get_by_test_id("ranked-table")).to_contain_text("1. int8")
    expect(page.get_by_test_id("frontier-chart")).to_be_visible()
    fits(page, "comparison")
    ComparisonRun.objects.filter(pk=run.pk).update(result=replayed())
    page.reload()
    expect(page.get_by_test_id("bars")).to_contain_text("trace at 4x")
    fits(page, "comparison-replayed")
    page.goto(f"/staff/comparisons/new?base_model={staffed.name}&variant=int8")
    fits(page, "comparison-new")
    page.goto("/staff/prompt-sets/")
    fits(page, "prompt-sets")
