"""Placing adapters by REST and on the operator's pages; what is shown of them; consolidation's page."""

from __future__ import annotations

import uuid

import pytest
from django.test import Client
from django.utils import timezone

from contracts.base_routes import AdapterHomes
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.publishing import homes_of
from controlplane.deployments.models import AdapterRule, Copy, Deployment
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.metering.models import UsageEventRow
from controlplane.metering.partitions import partitions_ensure
from controlplane.platform.audit.models import AuditRecord
from tests.controlplane.deployments.conftest import Register
from tests.controlplane.deployments.test_api import CLOUD, create, post, staff  # noqa: F401

pytestmark = pytest.mark.django_db
RULES = "deployments/tiny/adapter-rules"
PAGE = "/staff/deployments/tiny"
JSON = "application/json"


@pytest.fixture
def deployment(tiny: BaseModel) -> Deployment:
    """A deployment of three copies that do not answer."""
    made = deployment_create(
        name="tiny",
        target=target_create(name="here", kind="local"),
        base_model=tiny,
        min_copies=3,
        max_copies=4,
    )
    for number in range(3):
        Copy.objects.create(
            id=f"copy-{number}",
            url=f"http://127.0.0.1:{number + 1}",
            base_model=tiny,
            kind="worker",
            deployment=made,
        )
    Deployment.objects.filter(pk=made.pk).update(status="serving")
    made.refresh_from_db()
    return made


@pytest.fixture
def name(register: Register) -> str:
    """The engine name of a routed version."""
    return register("plain", "bot").engine_name


def used(base: BaseModel, adapter: str, copy: str, ttft: float | None, status: str = "ok") -> None:
    at = timezone.now()
    partitions_ensure([at.date()])
    UsageEventRow.objects.create(
        event_id=uuid.uuid4(),
        day=at.date(),
        hour=at.hour,
        tenant="acme",
        project="p",
        key_id="k",
        request_id=uuid.uuid4().hex,
        attempt=1,
        requested_model="m",
        alias="",
        arm="",
        adapter=adapter,
        base_model=base.name,
        backend="worker",
        endpoint=copy,
        status=status,
        error_code="",
        prompt_tokens=5,
        cached_tokens=0,
        completion_tokens=2,
        estimated=False,
        duration_ms=1000,
        ttft_ms=ttft,
        started_at=int(at.timestamp() * 1000) - 1000,
        gateway_id="g",
    )


def test_rules_by_rest(staff: Client, deployment: Deployment, name: str) -> None:  # noqa: F811
    path = f"/api/v1/{RULES}/{name}"
    assert staff.get(path).status_code == 404
    assert staff.put(path, {"on": ["copy-9"]}, JSON).status_code == 400
    assert staff.put(path, {"copies": 1, "on": ["copy-0", "copy-1"]}, JSON).status_code == 400
    unknown = staff.put(f"/api/v1/{RULES}/{name[:-1]}x", {}, JSON)
    assert unknown.status_code == 404
    told = staff.put(path, {"copies": 2, "on": ["copy-1"]}, JSON)
    assert told.status_code == 200, told.content
    assert (told.json()["copies"], told.json()["on"], told.json()["status"]) == (2, ["copy-1"], "loading")
    assert staff.get(path)["ETag"] == told["ETag"]
    stale = staff.put(path, {"copies": 1}, JSON, headers={"If-Match": '"other"'})
    assert stale.status_code == 412
    assert post(staff, f"{RULES}/{name}/evict", {"copies": ["copy-1"]}).status_code == 409
    assert (
        post(staff, f"{RULES}/{name}/move", {"from_copy": "copy-0", "to_copy": "copy-0"}).status_code == 400
    )
    moved = post(staff, f"{RULES}/{name}/move", {"from_copy": "copy-1", "to_copy": "copy-2"})
    assert (moved.status_code, moved.json()["on"], moved.json()["leaving"]) == (202, ["copy-2"], ["copy-1"])
    assert moved.json()["status"] == "moving"
    everywhere = post(staff, f"{RULES}/{name}/evict", {"keep_away": True})
    assert (everywhere.status_code, "must leave at least one copy" in everywhere.content.decode()) == (
        400,
        True,
    )
    away = post(staff, f"{RULES}/{name}/evict", {"copies": ["copy-0"], "keep_away": True})
    assert (away.status_code, away.json()["away"]) == (202, ["copy-0"])
    others = {"copies": ["copy-1", "copy-2"], "keep_away": True}
    assert post(staff, f"{RULES}/{name}/evict", others).status_code == 400, "the union is every copy"
    copies = {"copy-0", "copy-1", "copy-2"}
    homes = homes_of(base_model_id=deployment.base_model_id, copies=copies)
    assert homes == {name: AdapterHomes((), ("copy-0",))}, "at once, and what moves stays until it is ready"
    assert [rule["adapter"] for rule in staff.get(f"/api/v1/{RULES}").json()["results"]] == [name]
    assert staff.delete(path).status_code == 204
    assert staff.delete(path).status_code == 404
    verbs = (
        AuditRecord.objects.filter(target_type="adapterrule").order_by("pk").values_list("action", flat=True)
    )
    assert [verb.removeprefix("adapter_rule.") for verb in verbs] == ["pin", "move", "evict", "unpin"]
    assert deployment.steps.get(action="adapter.move").actor == "s@graft.test"


def test_where_adapters_are_not_ours_to_place(staff: Client, tiny: BaseModel, name: str) -> None:  # noqa: F811
    target_create(name="cloud", **CLOUD)
    assert create(staff, tiny).status_code == 201
    answer = staff.put(f"/api/v1/deployments/llama/adapter-rules/{name}", {}, JSON)
    assert (answer.status_code, "component" in answer.content.decode()) == (400, True)
    page = staff.get("/staff/deployments/llama/adapters").content.decode()
    assert "every copy of the base" in page
    assert 'data-testid="place-move"' not in page
    servers = target_create(name="servers", kind="openai_http", urls=["http://127.0.0.1:1"])
    deployment_create(name="vllm", target=servers, base_model=tiny)
    answer = staff.put(f"/api/v1/deployments/vllm/adapter-rules/{name}", {}, JSON)
    assert (answer.status_code, "hosting api" in answer.content.decode()) == (400, True)


def test_use_is_told_by_adapter_and_copy(
    staff: Client,  # noqa: F811
    deployment: Deployment,
    tiny: BaseModel,
    name: str,
) -> None:
    for ttft in (10, 20, 30, 400):
        used(tiny, name, "copy-0", ttft)
    used(tiny, name, "copy-0", None, "error")
    used(tiny, name, "copy-1", 50)
    used(tiny, "", "copy-1", 50)
    used(tiny, name, "copy-of-another", 50)
    told = staff.get("/api/v1/deployments/tiny/adapters").json()
    assert [(item["copy"], item["answers"]) for item in told["copies"]] == [
        ("copy-0", False),
        ("copy-1", False),
        ("copy-2", False),
    ]
    (adapter,) = told["adapters"]
    first, second, third = adapter["on"]
    assert (adapter["adapter"], first["requests"], first["failed"]) == (name, 5, 1)
    assert (first["prompt_tokens"], first["completion_tokens"], first["loaded"]) == (25, 10, "unknown")
    assert (first["ttft_p50_ms"], first["ttft_p95_ms"]) == (20, 400)
    assert (second["requests"], second["ttft_p50_ms"], third["requests"]) == (1, 50, 0)
    assert (third["ttft_p50_ms"], third["last_used_at"]) == (None, None)
    assert first["last_used_at"]
    assert staff.get("/api/v1/deployments/tiny/adapters?search=none").json()["total"] == 0
    assert staff.get("/api/v1/deployments/tiny/adapters?minutes=0").status_code == 400
    page = staff.get(f"{PAGE}/adapters").content.decode()
    assert name in page
    assert "20 / 400 ms" in page


def test_on_the_page(staff: Client, deployment: Deployment, name: str) -> None:  # noqa: F811
    assert f'href="{PAGE}/adapters"' in staff.get(f"{PAGE}/").content.decode()
    assert f'value="{name}"' in staff.get(f"{PAGE}/adapters?adapter={name}").content.decode()

    def act(**values: object) -> int:
        return staff.post(f"{PAGE}/adapters/act", {"adapter": name, **values}).status_code

    assert act(action="pin", on=["copy-0", "copy-1"]) == 302
    assert AdapterRule.objects.get().on == ["copy-0", "copy-1"]
    assert act(action="pin", copies="many") == 422
    refused = staff.post(f"{PAGE}/adapters/act", {"adapter": name, "action": "evict", "on": ["copy-0"]})
    assert refused.status_code == 422
    content = refused.content.decode()
    assert "pinned on copy-0" in content
    assert 'href="?' not in content, "nothing leads below /act, which takes no GET"
    assert act(action="move", source="copy-0", to="copy-2") == 302
    assert AdapterRule.objects.get().on == ["copy-2", "copy-1"]
    assert act(action="evict", on=["copy-0"], keep_away="on") == 302
    assert AdapterRule.objects.get().away == ["copy-0"]
    assert name in staff.get(f"{PAGE}/status").content.decode(), "the deployment's page tells it"
    assert act(action="unpin") == 302
    assert act(action="unpin") == 422
    assert act(action="dance") == 422


def test_consolidation_on_its_page(
    staff: Client,  # noqa: F811
    deployment: Deployment,
    tiny: BaseModel,
    name: str,
) -> None:
    used(tiny, name, "copy-0", 10)
    used(tiny, name, "copy-1", 10)
    path = f"{PAGE}/consolidation"
    page = staff.get(path).content.decode()
    assert '<dd data-testid="plan-saved">2</dd>' in page
    assert '<dd data-testid="plan-moves">1</dd>' in page
    assert Deployment.objects.get().min_copies == 3, "a dry run changes nothing"
    assert staff.get(f"{path}?minutes=99").status_code == 422
    done = staff.post(f"{path}?minutes=15")
    assert done.status_code == 302
    assert Deployment.objects.get().min_copies == 1
    state = staff.get(f"{path}/status").content.decode()
    assert "1 copies desired, 3 in the routes" in state
    assert "hx-get" in state, "asked for again until it is done"
    assert "3 -&gt; 1" in state
    Copy.objects.exclude(pk="copy-0").delete()
    again = staff.post(path)
    assert (again.status_code, "are needed" in again.content.decode()) == (422, True)
