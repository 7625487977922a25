"""The fleet as copies and metering report it: metrics, time of the last answer, adapters on copies."""

from __future__ import annotations

import datetime as dt
import re
import ssl
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from contracts.adapters.reference import engine_name
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import AdapterRule, Copy, Deployment, Target
from controlplane.deployments.placement.residency.openai_http import OpenAIHttpResidency
from controlplane.fleet.figures import read_figures
from controlplane.fleet.overview import CopyState, fleet_overview
from controlplane.fleet.polls import copies_poll
from controlplane.fleet.residency import PAGE, residency_map
from controlplane.metering.models import UsageEventRow
from controlplane.metering.partitions import partitions_ensure
from controlplane.platform.http.tls import tls_context
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create
from tests.controlplane.fleet.copy_server import VLLM, VLLM_LORA, WORKER, CopyServer, copy_server

pytestmark = pytest.mark.django_db


@pytest.fixture
def server() -> Iterator[CopyServer]:
    with copy_server() as state:
        yield state


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@x.test", password="long-enough-7", is_staff=True))
    return client


def routed(base: BaseModel, name: str, url: str, **options: Any) -> Copy:
    return Copy.objects.create(id=name, base_model=base, kind="worker", url=url, **options)


def version(tenant: Tenant, base: BaseModel, name: str, digit: str) -> AdapterVersion:
    adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=base)
    return AdapterVersion.objects.create(
        adapter=adapter, number=1, status="ready", sha256=digit * 64, uri="file:///a/", rank=2
    )


def test_no_copy_costs_reading_the_authorities_again(
    base_model: BaseModel, server: CopyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = routed(base_model, "copy-a", server.url)
    tls_context()
    read: list[object] = []
    whole = ssl.SSLContext.load_verify_locations

    def counted(context: ssl.SSLContext, *arguments: Any, **options: Any) -> None:
        read.append(context)
        whole(context, *arguments, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    assert copies_poll([copy])[copy.pk].answers
    assert residency_map(base=base_model).faults == {}
    assert read == []


def used(base: BaseModel, copy: str, adapter: str, *, status: str = "ok", ttft: float = 20.0) -> None:
    at = timezone.now() - dt.timedelta(seconds=30)
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
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=5,
        estimated=False,
        duration_ms=100,
        ttft_ms=ttft,
        started_at=int(at.timestamp() * 1000),
        gateway_id="g",
    )


def test_a_vllm_servers_adapters_are_those_it_lists_and_those_that_run() -> None:
    with copy_server() as server:
        server.models, server.metrics = ["base", "two", "five"], VLLM + VLLM_LORA
        with closing(OpenAIHttpResidency(server.url, {})) as residency:
            tiers = {name: held.tier for name, held in residency.memory().adapters.items()}
            assert tiers == {"base": "server", "five": "server", "two": "device"}
            server.metrics = "no metrics of vLLM"
            assert {held.tier for held in residency.memory().adapters.values()} == {"server"}


def test_a_workers_and_vllms_figures_are_read_and_another_text_is_none() -> None:
    worker = read_figures(WORKER)
    assert worker is not None
    assert list(worker.tuned_configs) == ["NVIDIA_H100_lora.json"]
    assert (worker.running, worker.waiting, worker.used_share) == (3, 2, 0.45)
    assert worker.adapters == {"device": 2, "host": 5}, "what has pages counts once"
    vllm = read_figures(VLLM)
    assert vllm is not None
    assert (vllm.running, vllm.waiting, vllm.used_share) == (5, 6, 0.25), "all of its engines"
    assert (vllm.adapters, vllm.adapter_slots) == ({}, None), "no adapter has had a request"
    lora = read_figures(VLLM + VLLM_LORA)
    assert lora is not None
    assert (lora.adapters, lora.adapter_slots) == ({"device": 2}, 4)
    assert read_figures("<html>hello</html>") is None
    assert read_figures("graftwork_worker_requests_running many") is None
    refusing = read_figures(WORKER.replace("worker_up 1", "worker_up 0"))
    assert refusing is not None
    assert not refusing.takes_requests


def test_a_copy_that_falls_silent_keeps_its_last_figures_with_their_time(
    base_model: BaseModel, server: CopyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = routed(base_model, "copy-a", server.url)
    first = copies_poll([copy])["copy-a"]
    assert first.answers
    assert copies_poll([copy])["copy-a"] == first
    assert server.asked == ["/metrics"], "two that look at once ask once"
    monkeypatch.setattr("controlplane.fleet.polls.SHARED_SECONDS", 0.0)
    server.status = 503
    second = copies_poll([copy])["copy-a"]
    assert "503" in second.error
    assert (second.figures, second.answered_at) == (first.figures, first.answered_at)
    third = copies_poll([copy])["copy-a"]
    assert third.silent_since == second.silent_since, "since the first look without an answer"
    server.status = 200
    assert copies_poll([copy])["copy-a"].silent_since is None


def test_a_copy_that_hangs_does_not_hold_up_the_others(
    base_model: BaseModel, server: CopyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copy_server() as other:
        monkeypatch.setattr("controlplane.fleet.polls._ANSWER_SECONDS", 0.3)
        server.hangs = 3.0
        copies = [routed(base_model, "hangs", server.url), routed(base_model, "well", other.url)]
        found = copies_poll(copies)
        assert (found["hangs"].answers, found["well"].answers) == (False, True)


def test_without_redis_copies_are_asked_all_the_same(
    base_model: BaseModel, server: CopyServer, settings: Any
) -> None:
    import dataclasses

    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, redis_url="redis://127.0.0.1:1/0")
    copy = routed(base_model, "copy-a", server.url)
    assert copies_poll([copy])["copy-a"].answers


def test_the_overview_has_every_copy_with_its_state_and_its_traffic(
    base_model: BaseModel, server: CopyServer
) -> None:
    target = Target.objects.create(name="here", kind="local")
    deployment = Deployment.objects.create(
        name="d",
        target=target,
        base_model=base_model,
        hosting="on_demand",
        min_copies=2,
        status="working",
        resources=[
            {"kind": "worker", "name": "abc-0", "state": "ready", "reason": ""},
            {"kind": "worker", "name": "abc-1", "state": "starting", "reason": "loads"},
        ],
    )
    routed(base_model, "well", server.url, deployment=deployment)
    routed(base_model, "gone", "http://127.0.0.1:1")
    Copy.objects.create(
        id="far", base_model=base_model, kind="sagemaker", region="eu-west-1", endpoint="e", component="c"
    )
    for status in ("ok", "ok", "error"):
        used(base_model, "well", "", status=status)
    overview = fleet_overview()
    states = {copy.name: copy.state for copy in overview.copies}
    assert states == {
        "well": CopyState.SERVING,
        "gone": CopyState.SILENT,
        "far": CopyState.UNTOLD,
        "abc-1": CopyState.STARTING,
    }
    (base,) = overview.bases
    assert base.deployments[0].wanted == (2, 1)
    assert base.deployments[0].routed == 1
    (well,) = (copy for copy in overview.copies if copy.name == "well")
    assert (well.traffic.requests, well.traffic.errors, well.traffic.ttft_p95_ms) == (3, 1, 20.0)
    assert overview.total("running") == 3
    assert overview.used_share == 0.45


def test_clients_own_errors_are_no_failures_of_the_fleet(base_model: BaseModel, staff: Client) -> None:
    routed(base_model, "well", "http://127.0.0.1:1")
    for status in ("ok", "ok", *["client_error"] * 6):
        used(base_model, "well", "", status=status)
    traffic = staff.get("/api/v1/fleet").json()["traffic"]
    assert (traffic["requests"], traffic["failed"], traffic["client_errors"]) == (8, 0, 6)
    page = staff.get("/staff/fleet/").content.decode()
    assert "6 client errors" in page
    (failed,) = re.findall(r"<dt>Failed</dt><dd>([^<]*)<", page)
    assert failed.strip() in ("0 %", "0\u202f%", "0\u00a0%", "0.0 %")


def test_the_fleets_queries_do_not_grow_with_it(base_model: BaseModel, staff: Client) -> None:
    target = Target.objects.create(name="here", kind="openai_http", urls=["http://127.0.0.1:1"])

    def grow(first: int, count: int) -> None:
        for number in range(first, first + count):
            deployment = Deployment.objects.create(
                name=f"d{number}", target=target, base_model=base_model, hosting="on_demand"
            )
            routed(base_model, f"copy-{number}", f"http://127.0.0.1:1/{number}", deployment=deployment)

    counts = []
    for first, count in ((0, 2), (2, 20)):
        grow(first, count)
        with CaptureQueriesContext(connection) as queries:
            assert staff.get("/staff/fleet/status").status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_map_says_where_each_adapter_lies(
    base_model: BaseModel, tenant: Tenant, server: CopyServer
) -> None:
    for name, digit in (("hot", "a"), ("warm", "b"), ("cold", "c"), ("nowhere", "d")):
        version(tenant, base_model, name, digit)
    server.held = {"a" * 64: "device", "b" * 64: "host", "f" * 64: "host"}
    server.disk = ["a" * 64, "c" * 64]
    routed(base_model, "near", server.url)
    routed(base_model, "silent", "http://127.0.0.1:1")
    names = {
        name: engine_name(tenant="acme", adapter=name, version=1, sha256=digit * 64)
        for name, digit in (("hot", "a"), ("warm", "b"), ("cold", "c"), ("nowhere", "d"))
    }
    used(base_model, "near", names["warm"])
    found = residency_map(base=base_model)
    tiers = {row.name: [cell.tier for cell in row.cells] for row in found.rows}
    assert tiers == {
        names["hot"]: ["device", "unknown"],
        names["warm"]: ["host", "unknown"],
        names["cold"]: ["disk", "unknown"],
        "f" * 12: ["host", "unknown"],
    }
    assert found.rows[0].name == names["warm"], "the busiest first"
    assert set(found.faults) == {"silent"}
    assert dict(found.tiers["near"]) == {"device": 1, "host": 2, "disk": 1}
    everything = residency_map(base=base_model, everything=True)
    assert [row.name for row in everything.rows][-1] == names["nowhere"], "behind what lies somewhere"
    assert len(everything.rows) == everything.total == 5
    assert residency_map(base=base_model, everything=True, search="NOWH").total == 1
    assert [row.name for row in residency_map(base=base_model, search="COLD").rows] == [names["cold"]]


@pytest.mark.costly("ten thousand adapters")
def test_ten_thousand_adapters_are_paged_with_as_many_queries_as_few(
    base_model: BaseModel, tenant: Tenant, server: CopyServer, staff: Client
) -> None:
    routed(base_model, "near", server.url)
    path = f"/staff/fleet/bases/{base_model.name}/adapters/"
    version(tenant, base_model, "one", "e")
    server.held = {"e" * 64: "host"}
    with CaptureQueriesContext(connection) as few:
        assert staff.get(path, {"all": "1"}).status_code == 200
    adapters = Adapter.objects.bulk_create(
        Adapter(tenant=tenant, name=f"a{number:05}", base_model=base_model) for number in range(10_000)
    )
    digests = [f"{number:064x}"[::-1] for number in range(10_000)]
    AdapterVersion.objects.bulk_create(
        AdapterVersion(adapter=adapter, number=1, status="ready", sha256=digest, uri="file:///a/", rank=2)
        for adapter, digest in zip(adapters, digests, strict=True)
    )
    server.held = dict.fromkeys(digests[:50], "host")
    with CaptureQueriesContext(connection) as many:
        page = staff.get(path, {"all": "1", "page": "2"}).content.decode()
    assert len(many) == len(few)
    assert f"page 2 of {-(-10_001 // PAGE)}" in page
    assert page.count("residency-cell") == PAGE + 1
    assert len(page) < 200_000
    shown: list[str] = []
    for number in (1, 2, 3, 201, 202):
        whole = residency_map(base=base_model, everything=True, page=number)
        assert (whole.total, whole.pages) == (10_001, 201)
        shown += [row.name for row in whole.rows]
    assert len(shown) == len(set(shown)) + 1 == PAGE * 3 + 2, "the page behind the last is the last"
    assert sorted(shown[50:150]) == shown[50:150]
    found = staff.get(path, {"all": "1", "search": "a04711"}).content.decode()
    assert "a04711" in found
    assert "1 adapter" in found


def test_one_adapters_page_places_it_and_comes_back(
    base_model: BaseModel, tenant: Tenant, staff: Client
) -> None:
    from controlplane.adapters.services import adapter_publish

    made = version(tenant, base_model, "bot", "a")
    adapter_publish(adapter=made.adapter)
    target = Target.objects.create(name="here", kind="local")
    deployment = Deployment.objects.create(
        name="d", target=target, base_model=base_model, hosting="on_demand"
    )
    routed(base_model, "copy-a", "http://127.0.0.1:1", deployment=deployment)
    used(base_model, "copy-a", made.engine_name)
    path = f"/staff/fleet/adapters/{made.engine_name}/"
    page = staff.get(path).content.decode()
    assert "copy-a" in page
    assert "unreachable" in page
    assert "20, 20 ms" in page
    values = {"adapter": made.engine_name, "action": "pin", "copies": "1", "next": path}
    assert staff.post("/staff/deployments/d/adapters/act", values).headers["Location"] == path
    assert AdapterRule.objects.get().engine_name == made.engine_name
    elsewhere = staff.post("/staff/deployments/d/adapters/act", {**values, "next": "https://evil.test/"})
    assert elsewhere.headers["Location"] == "/staff/deployments/d/adapters"
    assert staff.get("/staff/fleet/adapters/nonsense/").status_code == 404
    assert staff.get("/staff/fleet/adapters/t_acme.a_none.v1.aaaaaaaaaaaa/").status_code == 404


def test_a_copy_by_hand_is_drained_and_a_deployments_is_not(base_model: BaseModel, staff: Client) -> None:
    target = Target.objects.create(name="here", kind="local")
    deployment = Deployment.objects.create(
        name="d", target=target, base_model=base_model, hosting="on_demand"
    )
    routed(base_model, "own", "http://127.0.0.1:1", deployment=deployment)
    routed(base_model, "by-hand", "http://127.0.0.1:2")
    assert 'data-testid="drain"' in staff.get("/staff/fleet/copies/by-hand/").content.decode()
    page = staff.get("/staff/fleet/copies/own/").content.decode()
    assert 'data-testid="drain"' not in page
    assert "Reduce copies" in page
    refused = staff.post("/staff/fleet/copies/own/")
    assert refused.status_code == 409
    assert "would restore it" in refused.content.decode()
    assert staff.post("/staff/fleet/copies/by-hand/").status_code == 302
    assert set(Copy.objects.values_list("pk", flat=True)) == {"own"}
    assert staff.get("/staff/fleet/copies/by-hand/").status_code == 404


def test_empty_and_wrong_requests_have_pages_of_their_own(staff: Client, base_model: BaseModel) -> None:
    path = f"/staff/fleet/bases/{base_model.name}/adapters/"
    assert "No copies serve this base model" in staff.get(path).content.decode()
    wrong = staff.get(path, {"minutes": "x", "page": "-1", "search": "<script>alert(1)</script>"})
    assert wrong.status_code == 422
    assert "<script>alert(1)" not in wrong.content.decode()
    assert "No copies serve this base model" in staff.get("/staff/fleet/").content.decode()
    BaseModel.objects.all().delete()
    assert "No base models yet" in staff.get("/staff/fleet/").content.decode()


def test_rest_tells_what_the_pages_show(base_model: BaseModel, server: CopyServer, staff: Client) -> None:
    routed(base_model, "near", server.url)
    Copy.objects.create(
        id="far", base_model=base_model, kind="sagemaker", region="eu-west-1", endpoint="e", component="c"
    )
    server.held = {"f" * 64: "device"}
    target = Target.objects.create(name="here", kind="local")
    Deployment.objects.create(
        name="d", target=target, base_model=base_model, hosting="on_demand", max_copies=3
    )
    fleet = staff.get("/api/v1/fleet").json()
    (deployment,) = fleet["bases"][0]["deployments"]
    assert (deployment["least"], deployment["most"], deployment["routed"]) == (1, 3, 0)
    near, far = fleet["bases"][0]["copies"]
    assert (near["state"], near["running"], near["kv_share"]) == ("serving", 3, 0.45)
    assert near["adapters"] == {"device": 2, "host": 5}
    assert (far["state"], far["running"], far["adapters"]) == ("untold", None, {})
    told = staff.get("/api/v1/fleet/residency", {"base_model": base_model.name}).json()
    assert told["adapters"][0]["on"][0]["tier"] == "device"
    assert set(told["silent"]) == {"far"}
    assert staff.get("/api/v1/fleet/residency").status_code == 400
    assert staff.get("/api/v1/fleet/residency", {"base_model": "none"}).status_code == 404
