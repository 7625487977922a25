"""Consolidation: few busy copies bear what many idle ones do, as planned from metered usage."""

from __future__ import annotations

import datetime as dt
import math
import threading
import uuid
from pathlib import Path

import httpx
import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy, Deployment, Scaling
from controlplane.deployments.placement.planner import HEADROOM, Traffic, plan
from controlplane.deployments.services import deployment_create, deployment_remove
from controlplane.deployments.targets.services import target_create
from controlplane.metering.models import UsageEventRow
from controlplane.metering.partitions import partitions_ensure
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.deployments.conftest import TOKEN, drive, removed, serving
from tests.controlplane.deployments.test_api import CLOUD, create
from tests.controlplane.deployments.test_local import ENVIRONMENT, wait, workers
from tests.gateway.conftest import GatewayProcess
from tests.waiting import eventually


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def test_a_hundred_quiet_adapters_need_two_of_ten_copies() -> None:
    copies = [f"copy-{number}" for number in range(10)]
    traffic = [Traffic(f"a{number}", 0.1, (copies[number % 10],)) for number in range(100)]
    made = plan(copies, traffic, sequences=32, adapters=64)
    assert (len(made.keep), made.saved, made.short) == (2, 8, 0)
    assert sum(made.load.values()) == pytest.approx(10)
    assert len(made.moves) >= 80
    again = [Traffic(item.adapter, item.concurrency, made.placed[item.adapter]) for item in traffic]
    settled = plan([*made.keep, *made.spare], again, sequences=32, adapters=64)
    assert (settled.keep, settled.moves) == (made.keep, ()), "what is consolidated stays where it is"


def test_a_busy_adapter_is_split_and_what_does_not_fit_is_told() -> None:
    made = plan(["a", "b", "c"], [Traffic("hot", 12, ("a",))], sequences=10, adapters=4)
    assert made.placed["hot"] == ("a", "b")
    assert made.load == {"a": 6, "b": 6, "c": 0}
    assert made.spare == ("c",)
    full = plan(["a"], [Traffic("hot", 12)], sequences=10, adapters=4)
    assert full.short == 6


def test_as_many_copies_stay_as_are_wanted_at_least() -> None:
    assert plan(["a", "b", "c"], [], sequences=8, adapters=4, least=2).saved == 1
    assert plan([], [Traffic("x", 1)], sequences=8, adapters=4, least=0).short == 1


TRAFFIC = st.lists(st.floats(0, 30), max_size=40).map(
    lambda loads: [Traffic(f"a{number}", load) for number, load in enumerate(loads)]
)


@given(TRAFFIC, st.integers(1, 12), st.integers(1, 64), st.integers(1, 40), st.integers(0, 12))
def test_no_copy_is_planned_beyond_what_it_bears(
    traffic: list[Traffic], count: int, sequences: int, adapters: int, least: int
) -> None:
    copies = [f"copy-{number}" for number in range(count)]
    made = plan(copies, traffic, sequences=sequences, adapters=adapters, least=min(least, count))
    assert sorted([*made.keep, *made.spare]) == sorted(copies)
    assert all(load <= HEADROOM * sequences + 1e-5 for load in made.load.values())
    for copy in copies:
        held = [name for name, where in made.placed.items() if copy in where]
        assert len(held) <= adapters
        assert not held or copy in made.keep
    total = sum(item.concurrency for item in traffic)
    assert sum(made.load.values()) + made.short == pytest.approx(total, abs=1e-3)
    if not made.short:
        assert len(made.keep) >= min(count, max(least, math.ceil(total / (HEADROOM * sequences) - 1e-6)))


def used(base: BaseModel, adapter: str, copy: str, seconds: float, *, ago: float = 60) -> None:
    at = timezone.now() - dt.timedelta(seconds=ago)
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
        status="ok",
        error_code="",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        estimated=False,
        duration_ms=seconds * 1000,
        started_at=int(at.timestamp() * 1000),
        gateway_id="g",
    )


def test_the_plan_is_of_metered_traffic(staff: Client, tiny: BaseModel) -> None:
    deployment = deployment_create(
        name="tiny",
        target=target_create(name="here", kind="local"),
        base_model=tiny,
        min_copies=1,
        max_copies=4,
    )
    for number in range(3):
        Copy.objects.create(
            id=f"copy-{number}",
            url=f"http://127.0.0.1:{9 + number}",
            base_model=tiny,
            kind="worker",
            deployment=deployment,
        )
        used(tiny, f"t_acme.a_{number}.v1.0123456789ab", f"copy-{number}", 300)
    used(tiny, "t_acme.a_0.v1.0123456789ab", "copy-0", 150)
    used(tiny, "t_acme.a_0.v1.0123456789ab", "copy-0", 9000, ago=3000)
    used(tiny, "t_acme.a_0.v1.0123456789ab", "copy-of-another", 9000)
    path = "/api/v1/deployments/tiny/consolidation"
    told = staff.get(path).json()
    assert (told["saved"], told["spare"], told["moves"]) == (2, ["copy-1", "copy-2"], 2)
    first = told["adapters"][0]
    assert (first["adapter"], first["concurrency"]) == ("t_acme.a_0.v1.0123456789ab", 0.5)
    assert (first["copies"], first["to"]) == (["copy-0"], ["copy-0"])
    longer = staff.get(f"{path}?minutes=60").json()["adapters"][0]
    assert longer["concurrency"] == pytest.approx(9450 / 3600, abs=1e-4)
    assert staff.get(f"{path}?minutes=61").status_code == 400
    Scaling.objects.create(deployment=deployment, policy={"target": 4}, copies=3)
    Deployment.objects.update(min_copies=2)
    assert staff.get(path).json()["saved"] == 1, "two are wanted at least"
    assert Copy.objects.count() == 3, "a dry run changes nothing"


def test_sagemaker_chooses_itself(staff: Client, tiny: BaseModel) -> None:
    target_create(name="cloud", **CLOUD)
    assert create(staff, tiny).status_code == 201
    answer = staff.get("/api/v1/deployments/llama/consolidation")
    assert answer.status_code == 400
    assert "SageMaker routes among its copies itself" in answer.json()["errors"][0]["detail"]


@pytest.mark.costly("starts several workers")
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("forked_workers")
def test_spare_copies_end_and_no_request_fails(
    staff: Client, tiny: BaseModel, tenant: Tenant, local_root: Path, redis_url: str, tmp_path: Path
) -> None:
    target = target_create(name="here", kind="local")
    deployment = drive(
        deployment_create(
            name="tiny", target=target, base_model=tiny, min_copies=2, max_copies=2, environment=ENVIRONMENT
        ),
        serving,
        pause=wait,
    )
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    environ = {"GRAFTWORK_FLEET_TOKEN": TOKEN}
    gateway = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "gateway.log", environ=environ)
    over = threading.Event()
    statuses: list[tuple[int, bool]] = []

    def ask() -> None:
        body = {
            "model": "tiny-base",
            "prompt": "hello",
            "max_tokens": 100,
            "ignore_eos": True,
            "stream": True,
        }
        with httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
            while not over.is_set():
                answer = client.post(f"{gateway.url}/v1/completions", json=body)
                statuses.append((answer.status_code, answer.text.rstrip().endswith("[DONE]")))

    askers = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    try:
        gateway.start()
        for asker in askers:
            asker.start()
        answer = staff.post("/api/v1/deployments/tiny/consolidation?minutes=5")
        assert (answer.status_code, answer.json()["saved"]) == (202, 1), answer.content
        drive(deployment, lambda row: serving(row) and len(workers(local_root)) == 1, pause=wait)
        before = len(statuses)
        eventually(lambda: len(statuses) > before + 8)
    finally:
        over.set()
        for asker in askers:
            asker.join(60)
        gateway.stop()
    assert set(statuses) == {(200, True)}
    step = deployment.steps.get(action="consolidate")
    assert (step.resource, step.actor) == ("2 -> 1", "s@graft.test")
    assert AuditRecord.objects.filter(action="deployment.consolidate").count() == 1
    assert staff.post("/api/v1/deployments/tiny/consolidation").status_code == 409, "one is needed"
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=wait)


@pytest.mark.django_db
def test_with_a_policy_the_controllers_count_is_lowered(staff: Client, tiny: BaseModel) -> None:
    deployment = deployment_create(
        name="tiny",
        target=target_create(name="here", kind="local"),
        base_model=tiny,
        min_copies=1,
        max_copies=4,
    )
    for number in range(3):
        Copy.objects.create(
            id=f"copy-{number}",
            url=f"http://127.0.0.1:{9 + number}",
            base_model=tiny,
            kind="worker",
            deployment=deployment,
        )
    row = Scaling.objects.create(deployment=deployment, policy={"target": 4}, copies=3)
    answer = staff.post("/api/v1/deployments/tiny/consolidation")
    assert (answer.status_code, answer.json()["keep"]) == (202, ["copy-0"])
    row.refresh_from_db()
    deployment.refresh_from_db()
    assert (row.copies, deployment.min_copies) == (1, 1)
