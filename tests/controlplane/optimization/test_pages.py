"""The operator's pages: the menu and its refusals, a job as it goes, a comparison's charts, deployment."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.services import variant_create
from controlplane.console.optimization.comparison_charts import bars, frontier, ranked, sweep
from controlplane.deployments.desired import desired_of
from controlplane.deployments.models import Deployment, DeploymentRollout
from controlplane.deployments.provisioners.local.engines import WORKER
from controlplane.deployments.rollouts.services import deployment_rollout_abort
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.optimization.comparisons import comparison_create
from controlplane.optimization.deploying import job_deploy, job_take_back
from controlplane.optimization.models import Artifact, ComparisonRun, OptimizationJob, PromptSet
from controlplane.optimization.services import job_remove
from controlplane.tenants.services import user_create
from tests.controlplane.optimization.conftest import Ask
from tests.controlplane.optimization.measured import replayed, result

pytestmark = pytest.mark.django_db
STAFF = "/staff/optimizations"


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


@pytest.fixture
def made(tiny_base: BaseModel, ask: Ask) -> OptimizationJob:
    """A finished job whose variant speculates and has compiled parts in its folder."""
    job = ask(tiny_base, variant="fast")
    folder = tiny_base.source.rstrip("/")
    variant = variant_create(base_model=tiny_base, name="fast", dtype="bfloat16", source=folder)
    served = Path(folder).parent / "compiled"
    served.mkdir()
    artifact = Artifact.objects.create(
        pk="ab" * 32, state="stored", uri=Path(folder).as_uri(), size=9, files={}
    )
    OptimizationJob.objects.filter(pk=job.pk).update(
        status="done",
        variant=variant,
        artifact=artifact,
        ended_at=timezone.now(),
        result={
            "serve": {
                "model": "checkpoint",
                "flags": ["--speculation", "ngram", "--speculation-tokens", "4"],
                "environment": {"GRAFTWORK_WORKER_CACHE_DIR": served.name},
            }
        },
    )
    job.refresh_from_db()
    return job


@pytest.fixture
def deployment(tiny_base: BaseModel) -> Deployment:
    target = target_create(name="here", kind="local")
    row = deployment_create(
        name="tiny", target=target, base_model=tiny_base, environment={"GRAFTWORK_WORKER_FLAG_DTYPE": "bf16"}
    )
    Deployment.objects.filter(pk=row.pk).update(status="serving")
    row.refresh_from_db()
    return row


def form(**more: str) -> dict[str, str]:
    return {"base_model": "tiny-base", "preset": "own", "hardware": "cpu", "quantization": "int8", **more}


def test_refusals_are_shown_before_anything_is_asked_for(staff: Client, tiny_base: BaseModel) -> None:
    page = staff.get(f"{STAFF}/new").content.decode()
    assert 'hx-get="/staff/optimizations/check"' in page
    assert 'data-testid="preset-lowest_cost"' in page
    wrong = form(quantization="fp8", hardware="sm80", packed="1", speculation="eagle")
    told = staff.get(f"{STAFF}/check", wrong).content.decode()
    for code in ("fp8_hardware", "packed_form_is_the_cpus", "eagle_is_not_served_here"):
        assert code in told
    assert "Compatible options." in staff.get(f"{STAFF}/check", form()).content.decode()
    assert "choose a technique" in staff.get(f"{STAFF}/check", form(quantization="none")).content.decode()
    answer = staff.post(f"{STAFF}/new", wrong)
    assert (answer.status_code, "FP8 products need a GPU" in answer.content.decode()) == (422, True)
    assert OptimizationJob.objects.count() == 0


@pytest.mark.parametrize(("chosen", "head"), [("", "int8"), ("stored", "stored"), ("int8", "int8")])
def test_the_head_is_chosen_beside_the_weights(
    staff: Client, tiny_base: BaseModel, chosen: str, head: str
) -> None:
    assert 'data-testid="head"' in staff.get(f"{STAFF}/new").content.decode()
    wrong = staff.get(f"{STAFF}/check", form(quantization="none", packed="1", head="int8"))
    assert "int8_head" in wrong.content.decode()
    assert staff.post(f"{STAFF}/new", form(head=chosen)).status_code == 302
    assert OptimizationJob.objects.get().recipe["head"] == head


def test_a_job_from_the_menu_is_followed_and_cancelled(staff: Client, tiny_base: BaseModel) -> None:
    answer = staff.post(f"{STAFF}/new", form(preset="lowest_cost"))
    job = OptimizationJob.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"{STAFF}/{job.pk}/")
    assert job.recipe["quantization"] == "int8"
    again = staff.post(f"{STAFF}/new", form(preset="lowest_cost"), follow=True)
    assert "already exists" in again.content.decode()
    OptimizationJob.objects.update(
        status="running",
        phase="checkpoint",
        percent=41.5,
        eta_seconds=3700,
        log_tail="<b>layer 3</b>",
        lease_owner="x",
        lease_until=timezone.now() + timedelta(minutes=1),
        started_at=timezone.now(),
    )
    part = staff.get(f"{STAFF}/{job.pk}/status").content.decode()
    for text in ("data-poll", "41.5 %", "checkpoint", "1 h 1 min", "&lt;b&gt;layer 3&lt;/b&gt;"):
        assert text in part
    staff.post(f"{STAFF}/{job.pk}/act", {"action": "cancel"})
    job.refresh_from_db()
    assert (job.status, job.cancel_asked_at is not None) == ("cancelling", True)
    OptimizationJob.objects.update(status="cancelled", ended_at=timezone.now())
    ended = staff.get(f"{STAFF}/{job.pk}/status")
    assert (ended.status_code, ended["HX-Redirect"]) == (204, f"{STAFF}/{job.pk}/")
    assert "data-poll" not in staff.get(f"{STAFF}/{job.pk}/").content.decode()
    assert "lowest_cost" not in staff.get(f"{STAFF}/").content.decode()
    staff.post(f"{STAFF}/{job.pk}/act", {"action": "remove"})
    assert OptimizationJob.objects.count() == 0


def test_prompt_sets_by_page(staff: Client) -> None:
    sent = SimpleUploadedFile("p.jsonl", b'{"prompt": "a"}\n{"prompt": 1}\n')
    answer = staff.post("/staff/prompt-sets/", {"file": sent})
    assert (answer.status_code, "line 2: prompt must be a non-empty string" in answer.content.decode()) == (
        422,
        True,
    )
    staff.post(
        "/staff/prompt-sets/", {"file": SimpleUploadedFile("p.jsonl", b'{"prompt": "a"}\n'), "name": "Mine"}
    )
    assert PromptSet.objects.filter(name="Mine").exists()
    assert "Mine" in staff.get("/staff/prompt-sets/").content.decode()


def test_a_deployment_goes_over_to_the_variant_and_back(
    staff: Client, made: OptimizationJob, deployment: Deployment
) -> None:
    answer = staff.post(f"{STAFF}/{made.pk}/act", {"action": "deploy", "deployment": "tiny"})
    assert (answer.status_code, answer["Location"]) == (302, "/staff/deployments/tiny/")
    rollout = DeploymentRollout.objects.get()
    assert (rollout.strategy, rollout.before["variant"], rollout.after["variant"]) == ("canary", "", "fast")
    deployment.refresh_from_db()
    compiled = deployment.environment["GRAFTWORK_WORKER_CACHE_DIR"]
    assert deployment.environment == {
        "GRAFTWORK_WORKER_FLAG_DTYPE": "bf16",
        "GRAFTWORK_WORKER_CACHE_DIR": compiled,
    }
    assert deployment.options == {"speculation": "ngram", "speculation_tokens": 4}
    wanted = desired_of(deployment)
    flags = WORKER.flags(wanted)
    assert flags[flags.index("--speculation") :][:4] == [
        "--speculation",
        "ngram",
        "--speculation-tokens",
        "4",
    ]
    assert WORKER.variables(wanted) == {"GRAFTWORK_WORKER_CACHE_DIR": compiled}
    assert wanted.served_name == "tiny-base"
    # In use: neither the job nor its variant goes.
    with pytest.raises(ConflictError, match="in use by tiny"):
        job_remove(job=made)
    deployment_rollout_abort(rollout=rollout)
    deployment.refresh_from_db()
    assert (deployment.variant, deployment.environment) == ("", {"GRAFTWORK_WORKER_FLAG_DTYPE": "bf16"})
    assert deployment.options == {}


def test_one_click_takes_it_back_under_way_and_later(
    staff: Client, made: OptimizationJob, deployment: Deployment
) -> None:
    here, act = f"{STAFF}/{made.pk}/", f"{STAFF}/{made.pk}/act"
    take_back = {"action": "take_back", "deployment": "tiny"}
    plain = {"GRAFTWORK_WORKER_FLAG_DTYPE": "bf16"}
    nothing = staff.post(act, take_back, follow=True).content.decode()
    assert "tiny does not serve fast: there is nothing to revert" in nothing
    assert "take-back-tiny" not in staff.get(here).content.decode()
    staff.post(act, {"action": "deploy", "deployment": "tiny"})
    page = staff.get(here).content.decode()
    assert "take-back-tiny" in page
    assert 'data-testid="deploy"' not in page, "it is deployed there already"
    assert staff.post(act, take_back)["Location"] == "/staff/deployments/tiny/"
    assert DeploymentRollout.objects.get().aborted
    deployment.refresh_from_db()
    assert (deployment.variant, deployment.environment) == ("", plain)
    DeploymentRollout.objects.update(status="aborted")

    job_deploy(job=made, deployment=deployment)
    DeploymentRollout.objects.filter(status="running").update(status="completed")
    answer = staff.post(
        f"/api/v1/optimizations/{made.pk}/take-back", {"deployment": "tiny"}, content_type="application/json"
    )
    back = DeploymentRollout.objects.get(status="running")
    assert (answer.status_code, answer.json()["id"], back.strategy) == (201, back.pk, "canary")
    assert (back.before["variant"], back.after["variant"]) == ("fast", "")
    assert back.after["environment"] == plain


def test_what_it_served_before_may_be_no_more(
    made: OptimizationJob, deployment: Deployment, tiny_base: BaseModel
) -> None:
    variant_create(base_model=tiny_base, name="earlier", dtype="int8", source="/models/earlier")
    Deployment.objects.filter(pk=deployment.pk).update(variant="earlier")
    job_deploy(job=made, deployment=deployment)
    DeploymentRollout.objects.update(status="completed")
    Variant.objects.filter(name="earlier").delete()
    with pytest.raises(ConflictError, match="variant earlier, which tiny served before, is no more"):
        job_take_back(job=made, deployment=deployment)


def test_what_came_with_a_variant_leaves_with_it(
    made: OptimizationJob, deployment: Deployment, ask: Ask
) -> None:
    job_deploy(job=made, deployment=deployment)
    DeploymentRollout.objects.update(status="completed")
    base = made.base_model
    plain = ask(base, {"quantization": "int8"}, variant="plain")
    variant = variant_create(base_model=base, name="plain", dtype="int8", source="/models/plain/checkpoint")
    OptimizationJob.objects.filter(pk=plain.pk).update(status="done", variant=variant, result={"serve": {}})
    plain.refresh_from_db()
    job_deploy(job=plain, deployment=deployment)
    deployment.refresh_from_db()
    assert (deployment.variant, deployment.environment) == ("plain", {"GRAFTWORK_WORKER_FLAG_DTYPE": "bf16"})
    assert deployment.options == {}


def test_what_cannot_take_it_is_refused(made: OptimizationJob, deployment: Deployment, ask: Ask) -> None:
    target = target_create(name="vllm", kind="openai_http", urls=["http://127.0.0.1:1"])
    servers = deployment_create(name="others", target=target, base_model=made.base_model)
    with pytest.raises(InvalidInputError, match="are not managed here"):
        job_deploy(job=made, deployment=servers)
    waiting = ask(made.base_model, {"quantization": "int8"})
    with pytest.raises(ConflictError, match="is queued and has no variant"):
        job_deploy(job=waiting, deployment=deployment)
    Variant.objects.all().delete()
    made.refresh_from_db()
    assert made.variant is None


@pytest.fixture
def measured(tiny_base: BaseModel) -> ComparisonRun:
    for name in ("int8", "awq-int4"):
        variant_create(base_model=tiny_base, name=name, dtype="int8", source=f"/models/{name}")
    run, _ = comparison_create(
        base_model=tiny_base,
        arms=[{"variant": ""}, {"variant": "int8"}, {"variant": "awq-int4"}],
        name="Three",
    )
    ComparisonRun.objects.filter(pk=run.pk).update(status="done", result=result(), ended_at=timezone.now())
    run.refresh_from_db()
    return run


def test_a_comparison_is_ranked_and_drawn(staff: Client, measured: ComparisonRun) -> None:
    page = staff.get(f"/staff/comparisons/{measured.pk}/").content.decode()
    for text in (
        "1. int8",
        "2. original",
        "3. awq-int4",
        "1.03× (0.98–1.08)",
        "no significant difference",
        "Three",
        'data-testid="frontier-chart"',
        'data-testid="sweep-table"',
        "120.0 / 150.0 / 190.0",
        "It is Paris, &lt;b&gt;of course&lt;/b&gt;.",
        "18.00 (1.059×)",
        "empty response",
    ):
        assert text in page, text
    assert "<b>of course" not in page


def test_ranks_frontiers_and_bars() -> None:
    told = result()
    assert [row["name"] for row in ranked(told)] == ["int8", "original", "awq-int4"]
    chart = frontier(told)
    assert chart is not None
    assert (chart.priced, chart.currency) == (True, "USD")
    best = {(point.arm, point.streams) for point in chart.points if point.best}
    # At one stream int8 is fastest; at four it is cheapest; the original is neither.
    assert best == {("int8", 1), ("int8", 4)}
    assert all(0 <= point.x <= 460 and 0 <= point.y <= 260 for point in chart.points)
    unpriced = frontier(result(hour=None))
    assert unpriced is not None
    assert not unpriced.priced
    drawn: list[dict[str, Any]] = bars(told)
    assert [bar["shown"] for bar in drawn] == [True, False, True, True]
    assert all(0 <= bar["low"] <= bar["high"] <= bar["width"] for bar in drawn)


def test_a_replay_is_ranked_by_its_waits(staff: Client, measured: ComparisonRun) -> None:
    told = replayed()
    assert [row["name"] for row in ranked(told)] == ["int8", "awq-int4", "original"]
    assert frontier(told) is None
    drawn = bars(told)
    assert [(bar["arm"], bar["better"]) for bar in drawn] == [("int8", True), ("awq-int4", False)]
    assert [row["load"] for row in sweep(told)] == ["4x"] * 3
    ComparisonRun.objects.filter(pk=measured.pk).update(result=told)
    page = staff.get(f"/staff/comparisons/{measured.pk}/").content.decode()
    for text in (
        "trace replayed at 4x speed",
        "trace at 4x",
        "0.70× (0.60–0.80)",
        "Time to first token relative to the original",
        "Trace speed",
    ):
        assert text in page, text


def test_the_form_of_a_comparison(staff: Client, measured: ComparisonRun) -> None:
    page = staff.get("/staff/comparisons/new?base_model=tiny-base&variant=int8").content.decode()
    assert 'value="int8" checked' in page
    sent = {"base_model": "tiny-base", "variant": ["int8"], "again": "1", "concurrency": "1 4", "hour": "1.5"}
    answer = staff.post("/staff/comparisons/new", sent)
    run = ComparisonRun.objects.order_by("-pk").first()
    assert run is not None
    assert (answer.status_code, answer["Location"]) == (302, f"/staff/comparisons/{run.pk}/")
    assert [arm["name"] for arm in run.arms] == ["original", "int8", "original again"]
    assert run.settings == {"load": {"concurrency": [1, 4]}, "price": {"hour": 1.5, "currency": "USD"}}
    for field, text, says in (
        ("concurrency", "many", "A valid integer is required"),
        ("hour", "x", "A valid number is required"),
    ):
        wrong = staff.post("/staff/comparisons/new", sent | {field: text})
        assert (wrong.status_code, says in wrong.content.decode()) == (422, True)
    alone = staff.post("/staff/comparisons/new", {"base_model": "tiny-base"})
    assert (alone.status_code, "2 to 8 arms" in alone.content.decode()) == (422, True)
