"""Rollouts by REST and on the operator's pages: started, paused, resumed, aborted, told."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.audit.models import AuditRecord
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import variant_create
from controlplane.deployments.lifecycle import deployment_create
from controlplane.deployments.models import Deployment
from controlplane.deployments.targets import target_create
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
    assert (wrong.status_code, "has the variants: int8" in wrong.content.decode()) == (400, True)
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
    assert staff.get(f"/api/v1/{one}").json()["reason"] == "aborted by hand"
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
        "strategy": "blue_green", "variant": "", "image": "", "urls": "", "environment": "{}", "alarms": "",
        "options": '{"max_loras": 8}', "batch_copies": "1", "wait_seconds": "30", "max_error_increase": "",
    }  # fmt: skip
    assert 'name="options"' in staff.get(f"{PAGE}/rollouts").content.decode()
    for field, text, said in (
        ("options", "[]", "give a JSON object"),
        ("wait_seconds", "soon", "give a number"),
        ("batch_copies", "0", "from 1 to 1000"),
        ("options", "{}", "nothing would be another"),
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
    assert "no rollout is under way" in staff.get(f"{PAGE}/").content.decode()
