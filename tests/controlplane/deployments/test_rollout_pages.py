"""Rollouts by REST and on the operator's pages: start, pause, resume, abort, display."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from contracts.usage_event import uuid7
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import variant_create
from controlplane.deployments.models import Deployment, DeploymentRollout
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.metering.models import UsageEventRow
from controlplane.metering.partitions import partitions_ensure
from controlplane.platform.audit.models import AuditRecord
from tests.controlplane.deployments.test_api import post, staff  # noqa: F401

pytestmark = pytest.mark.django_db
PATH = "deployments/tiny/rollouts"
PAGE = "/staff/deployments/tiny"


@pytest.fixture
def deployment(tiny: BaseModel) -> Deployment:
    target = target_create(name="here", kind="local")
    made = deployment_create(name="tiny", target=target, base_model=tiny)
    Deployment.objects.filter(pk=made.pk).update(status="serving")
    return made


def test_by_rest(staff: Client, deployment: Deployment, tiny: BaseModel) -> None:  # noqa: F811
    variant_create(base_model=tiny, name="int8", dtype="int8", quantization="awq", source=tiny.source)
    wrong = post(staff, PATH, {"change": {"variant": "none"}})
    assert (wrong.status_code, "existing variants: int8" in wrong.content.decode()) == (400, True)
    answer = post(staff, PATH, {"change": {"variant": "int8"}, "policy": {"batch_copies": 2}})
    assert answer.status_code == 201, answer.content
    told = answer.json()
    assert (told["status"], told["strategy"], told["created_by"]) == ("running", "rolling", "s@graft.test")
    assert (told["before"]["variant"], told["after"]["variant"]) == ("", "int8")
    assert (told["policy"]["batch_copies"], told["policy"]["max_error_increase"]) == (2, 0.02)
    assert staff.get("/api/v1/deployments/tiny").json()["variant"] == "int8"
    assert post(staff, PATH, {"change": {"variant": ""}}).status_code == 409, "one at a time"
    patched = staff.patch("/api/v1/deployments/tiny", {"variant": ""}, content_type="application/json")
    assert patched.status_code == 409
    one = f"{PATH}/{told['id']}"
    assert post(staff, f"{one}/resume", {}).status_code == 409
    for verb, status in (("pause", "paused"), ("resume", "running"), ("abort", "rolling_back")):
        assert post(staff, f"{one}/{verb}", {}).json()["status"] == status
    assert staff.get(f"/api/v1/{one}").json()["reason"] == "aborted manually"
    assert staff.get("/api/v1/deployments/tiny").json()["variant"] == ""
    assert [item["id"] for item in staff.get(f"/api/v1/{PATH}").json()["results"]] == [told["id"]]
    steps = staff.get("/api/v1/deployments/tiny/steps").json()["results"]
    mine = [step for step in reversed(steps) if step["action"].startswith("rollout.")]
    verbs = [step["action"].removeprefix("rollout.") for step in mine]
    assert verbs == ["start", "pause", "resume", "take_back"]
    assert {step["actor"] for step in mine} == {"s@graft.test"}
    assert all(step["at"] and step["cause"] for step in mine)
    for verb in ("start", "pause", "resume", "take_back", "abort"):
        assert AuditRecord.objects.filter(action=f"deployment_rollout.{verb}").exists(), verb


def test_on_the_pages(staff: Client, deployment: Deployment) -> None:  # noqa: F811
    form = {
        "strategy": "blue_green",
        "variant": "",
        "image": "",
        "urls": "",
        "environment": "{}",
        "alarms": "",
        "options": '{"max_loras": 8}',
        "batch_copies": "1",
        "wait_seconds": "30",
        "max_error_increase": "",
        "shares": "",
    }
    assert 'name="options"' in staff.get(f"{PAGE}/rollouts").content.decode()
    for field, text, said in (
        ("options", "[]", "give a JSON object"),
        ("options", '{"max_loras": NaN}', "give a JSON object"),
        ("environment", '{"A": "\\u0000"}', "give a JSON object"),
        ("environment", "[" * 100_000, "give a JSON object"),
        ("wait_seconds", "soon", "A valid integer is required"),
        ("batch_copies", "0", "greater than or equal to 1"),
        ("options", "{}", "the change equals the current state"),
        ("shares", "5 25", "only for strategy canary"),
        ("shares", "5 %", "A valid integer is required"),
    ):
        answer = staff.post(f"{PAGE}/rollouts", form | {field: text})
        assert (answer.status_code, said in answer.content.decode()) == (422, True), field
    answer = staff.post(f"{PAGE}/rollouts", form)
    assert (answer.status_code, answer["Location"]) == (302, f"{PAGE}/")
    page = staff.get(f"{PAGE}/status").content.decode()
    assert "data-poll" in page, "it is shown as it goes"
    assert "rollout.start" in page
    assert 'data-testid="rollout-pause"' in page
    for action, shown in (("pause", "Resume"), ("resume", "Pause"), ("abort", "Rolling Back")):
        assert staff.post(f"{PAGE}/rollouts/act", {"action": action}).status_code == 302
        assert shown in staff.get(f"{PAGE}/status").content.decode()
    staff.post(f"{PAGE}/rollouts/act", {"action": "nonsense"})
    assert "no rollout is running" in staff.get(f"{PAGE}/").content.decode()


def test_a_canary_by_rest_with_what_either_side_answered(staff: Client, deployment: Deployment) -> None:  # noqa: F811
    body = {"change": {"options": {"max_loras": 8}}, "strategy": "canary"}
    for shares in ([0], [50, 20], [1.5], ["x"], list(range(1, 12))):
        assert post(staff, PATH, body | {"policy": {"shares": shares}}).status_code == 400, shares
    told = post(staff, PATH, body | {"policy": {"shares": [10, 40]}}).json()
    assert (told["strategy"], told["policy"]["shares"]) == ("canary", [10, 40])
    one = f"/api/v1/{PATH}/{told['id']}"
    DeploymentRollout.objects.update(copies={"new": ["copy-n"], "old": ["copy-o"]})
    now = timezone.now() + timedelta(seconds=1)
    for number in range(7):
        usage_row("copy-n" if number < 3 else "copy-o", number, now, status="error" if number == 0 else "ok")
    told = staff.get(f"{one}/usage").json()
    new, old = told["new"], told["old"]
    assert (new["copies"], new["requests"], new["failed"]) == (["copy-n"], 3, 1)
    assert (old["requests"], old["failed"], old["completion_tokens"], old["p50_ms"]) == (4, 0, 8, 10.0)
    page = staff.get(f"{PAGE}/status").content.decode()
    assert 'data-testid="side-new"' in page
    assert staff.get(f"/api/v1/{PATH}/0/usage").status_code == 404


def usage_row(copy: str, number: int, at: datetime, *, status: str) -> None:
    partitions_ensure([at.astimezone(UTC).date()])
    UsageEventRow.objects.create(
        event_id=uuid7(),
        day=at.astimezone(UTC).date(),
        tenant="acme",
        project="",
        key_id="k",
        request_id=f"r{number}",
        attempt=1,
        requested_model="tiny-base",
        alias="",
        arm="",
        adapter="",
        base_model="tiny-base",
        backend="worker",
        endpoint=copy,
        status=status,
        error_code="",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=2,
        estimated=False,
        ttft_ms=10.0,
        duration_ms=20.0,
        started_at=int(at.timestamp() * 1000),
        gateway_id="g",
    )
