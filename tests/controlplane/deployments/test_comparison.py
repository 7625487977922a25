"""A deployment's page and `/state`: desired and observed resources, and a scale-up with its forecast."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.deployments.comparison import Comparison, Verdict, compare
from controlplane.deployments.models import Copy, Deployment, Placement, ScaleUp
from controlplane.deployments.phases.forecast import forecast_of
from controlplane.deployments.phases.recorder import scale_ups_observe
from controlplane.deployments.provisioners.base import Observation
from controlplane.deployments.services import deployment_create, deployment_remove, deployment_update
from controlplane.deployments.targets.services import target_create
from controlplane.tenants.services import user_create
from tests.controlplane.deployments.test_api import CLOUD

pytestmark = pytest.mark.django_db
PAGE, REST = "/staff/deployments/tiny/", "/api/v1/deployments/tiny/state"


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


@pytest.fixture
def local(tiny: BaseModel) -> Deployment:
    target = target_create(name="here", kind="local")
    return deployment_create(name="tiny", target=target, base_model=tiny, min_copies=2, max_copies=4)


def observe(deployment: Deployment, *resources: dict[str, Any], generation: int = 1) -> Deployment:
    """Store the resources that a reconcile observed."""
    deployment.resources, deployment.observed_at = list(resources), timezone.now()
    deployment.observed_generation = generation
    deployment.save()
    return deployment


def worker(base: str, state: str = "ready", *, stale: bool = False) -> dict[str, Any]:
    return {
        "kind": "worker",
        "name": "w",
        "state": state,
        "reason": "",
        "has": {"base": base},
        "stale": stale,
    }


def verdicts(deployment: Deployment) -> dict[str, Verdict]:
    return {item.what: item.verdict for item in compare(deployment)}


def comparison(deployment: Deployment, what: str) -> Comparison:
    return next(item for item in compare(deployment) if item.what == what)


def test_what_was_not_looked_at_is_not_told(local: Deployment) -> None:
    assert verdicts(local) == dict.fromkeys(("copies", "base", "generation"), Verdict.UNKNOWN)
    assert comparison(local, "copies").wanted == "2", "adapters come with requests: none is kept in place"


def test_a_host_with_all_that_is_wanted(local: Deployment, tiny: BaseModel) -> None:
    observe(local, worker(tiny.source), worker(tiny.source))
    assert set(verdicts(local).values()) == {Verdict.SAME}
    assert comparison(local, "base") == Comparison("base", tiny.source, tiny.source, Verdict.SAME)


def test_each_difference_is_marked(local: Deployment, tiny: BaseModel) -> None:
    observe(local, worker(tiny.source), worker("/old", stale=True), worker(tiny.source, "starting"))
    assert comparison(local, "copies").seen == "2, 1 of them outdated"
    assert comparison(local, "base").seen == f"{tiny.source}, /old"
    deployment_update(deployment=local, min_copies=3)
    local.refresh_from_db()
    assert set(verdicts(local).values()) == {Verdict.DIFFERS}
    assert (comparison(local, "copies").wanted, comparison(local, "generation").seen) == ("3", "1")


def test_a_deployment_that_is_removed_wants_nothing(local: Deployment, tiny: BaseModel) -> None:
    observe(local, worker(tiny.source, "leaving"))
    deployment_remove(deployment=local)
    local.refresh_from_db()
    assert compare(local) == [Comparison("copies", "0", "0", Verdict.SAME)]


def test_sagemaker_tells_image_instances_and_copies(tiny: BaseModel) -> None:
    row = deployment_create(
        name="tiny",
        target=target_create(name="cloud", **CLOUD),
        base_model=tiny,
        max_copies=3,
        instance_type="ml.g6e.2xlarge",
    )
    Placement.objects.create(
        deployment=row, engine_name="t_acme.a_bot.v1.x", uri="s3://x", sha256="ab" * 32, rank=2
    )
    base = {"copies": "2", "image": "as model-9 has it", "base": "as model-9 has it"}
    observe(
        row,
        {"kind": "endpoint", "name": "e", "state": "ready", "has": {"instance_type": "ml.g6e.2xlarge"}},
        {"kind": "base component", "name": "b", "state": "changing", "has": base, "stale": False},
    )
    assert verdicts(row) == {
        "copies": Verdict.SAME,
        "base": Verdict.DIFFERS,
        "image": Verdict.DIFFERS,
        "instance_type": Verdict.SAME,
        "adapters": Verdict.DIFFERS,
        "generation": Verdict.SAME,
    }
    assert comparison(row, "copies").wanted == "1 to 3"
    Placement.objects.update(status=Placement.Status.READY)
    assert comparison(row, "adapters") == Comparison("adapters", "1", "1", Verdict.SAME)
    Placement.objects.update(leaves_at=timezone.now())
    assert comparison(row, "adapters") == Comparison("adapters", "0", "0, 1 leaving", Verdict.DIFFERS)


def test_servers_are_wanted_as_many_as_the_target_names(tiny: BaseModel) -> None:
    target = target_create(name="vllm", kind="openai_http", urls=["http://a", "http://b"])
    row = deployment_create(name="tiny", target=target, base_model=tiny)
    observe(row, {"kind": "server", "name": "http://a", "state": "ready", "has": {"base": "tiny"}})
    assert comparison(row, "copies") == Comparison("copies", "2", "1", Verdict.DIFFERS)
    assert comparison(row, "base") == Comparison("base", "tiny", "tiny", Verdict.SAME)


def ended(deployment: Deployment, seconds: float) -> None:
    at = timezone.now() - dt.timedelta(hours=1)
    ScaleUp.objects.create(
        deployment=deployment,
        event=str(seconds),
        copies_before=0,
        copies_after=1,
        began_at=at,
        decided_at=at,
        ended_at=at,
        phases={"weights": seconds, "runtime": 10.0},
        outcome="done",
    )


def test_a_growth_stands_against_its_forecast(staff: Client, local: Deployment, tiny: BaseModel) -> None:
    deployment_update(deployment=local, min_copies=3)
    assert forecast_of(local) is None, "nothing is known of how long one takes"
    for seconds in (30.0, 40.0, 50.0):
        ended(local, seconds)
    row = local.scale_ups.get(ended_at=None)
    assert (row.copies_before, row.copies_after) == (2, 3)
    now = row.began_at + dt.timedelta(seconds=20)
    found = forecast_of(local, now=now)
    assert found is not None
    assert (found.elapsed, found.prediction.seconds, found.left, found.late) == (20.0, 50.0, 30.0, 0.0)
    assert [(bar.phase, bar.x, bar.width) for bar in found.bars] == [
        ("weights", 0.0, 800.0),
        ("runtime", 800.0, 200.0),
    ]
    assert found.now == 400.0
    assert found.phase is not None
    assert found.phase.phase == "weights"
    late = forecast_of(local, now=row.began_at + dt.timedelta(seconds=100))
    assert late is not None
    assert (late.left, late.late, late.phase, late.now) == (0.0, 50.0, None, 1000.0)
    assert [bar.width for bar in late.bars] == [400.0, 100.0], "one scale for both"
    page = staff.get(PAGE).text
    assert 'data-testid="forecast"' in page
    assert 'aria-label="weights 40.0 s, runtime 10.0 s"' in page
    assert 'hx-trigger="every 2s"' in page, "it is looked at while it goes on"
    told = staff.get(REST).json()["scale_up"]
    assert (told["copies_after"], told["expected_seconds"], told["phases"]["weights"]) == (3, 50.0, 40.0)
    for number in range(3):
        Copy.objects.create(
            id=f"copy-{number}",
            url=f"http://127.0.0.1:{number + 1}",
            base_model=tiny,
            kind="worker",
            deployment=local,
        )
    scale_ups_observe(deployment=local, seen=Observation())
    assert forecast_of(local) is None
    assert staff.get(REST).json()["scale_up"] is None
    assert 'data-testid="forecast"' not in staff.get(f"{PAGE}status").text


def test_fewer_copies_end_a_growth_that_was_asked_for(local: Deployment) -> None:
    deployment_update(deployment=local, min_copies=4)
    deployment_update(deployment=local, min_copies=1)
    row = local.scale_ups.get()
    assert row.outcome == "overtaken"
    assert row.cause.startswith("requested by ")


def test_page_and_rest_say_the_same(staff: Client, local: Deployment, tiny: BaseModel) -> None:
    observe(local, worker(tiny.source), worker("/old", stale=True))
    told = staff.get(REST).json()
    assert [item["verdict"] for item in told["compared"]] == ["differs", "differs", "same"]
    page = staff.get(PAGE).text
    marked = re.findall(r'data-testid="compared-(\w+)" data-verdict="(\w+)"', page)
    assert marked == [(item["what"], item["verdict"]) for item in told["compared"]]
    assert "outdated" in page
    resources = staff.get("/api/v1/deployments/tiny").json()["resources"]
    assert [(item["has"]["base"], item["stale"]) for item in resources] == [
        (tiny.source, False),
        ("/old", True),
    ]
    Deployment.objects.update(resources=[{"kind": "worker", "name": "w", "state": "ready", "reason": ""}])
    resources = staff.get("/api/v1/deployments/tiny").json()["resources"]
    assert (resources[0]["has"], resources[0]["stale"]) == ({}, False), "a row of an older release"
    assert staff.get("/api/v1/deployments/other/state").status_code == 404
