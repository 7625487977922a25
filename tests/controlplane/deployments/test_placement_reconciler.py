"""Single rounds of the placement reconciler, over copies that refuse, are silent, or leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from contracts.base_routes import AdapterHomes
from controlplane.adapters.services import adapter_publish
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.publishing import base_publish
from controlplane.deployments.models import AdapterRule, Copy, Deployment
from controlplane.deployments.placement import reconciler
from controlplane.deployments.placement.memories import memories_read
from controlplane.deployments.placement.reconciler import SOON, Outcome, reconcile_placements
from controlplane.deployments.placement.residency.worker import WorkerResidency
from controlplane.deployments.placement.rules import adapter_evict, adapter_move, adapter_pin
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.routes.models import RouteDelta, RouteEntryRow
from controlplane.routes.selectors import route_base
from tests.controlplane.deployments.conftest import Register, unregister
from tests.controlplane.deployments.resident_server import ResidentServer, resident_server

pytestmark = pytest.mark.django_db
A, B, C = "copy-0", "copy-1", "copy-2"


@pytest.fixture
def servers() -> Iterator[dict[str, ResidentServer]]:
    with ExitStack() as stack:
        yield {copy: stack.enter_context(resident_server()) for copy in (A, B, C)}


@pytest.fixture
def deployment(tiny: BaseModel, servers: dict[str, ResidentServer]) -> Deployment:
    made = deployment_create(
        name="tiny",
        target=target_create(name="here", kind="local"),
        base_model=tiny,
        min_copies=3,
        max_copies=4,
    )
    for copy, server in servers.items():
        Copy.objects.create(id=copy, url=server.url, base_model=tiny, kind="worker", deployment=made)
    base_publish(tiny)
    return made


def reconcile(deployment: Deployment) -> Outcome:
    return reconcile_placements(deployment=deployment, renew=lambda **_: None)


def homes(deployment: Deployment, name: str) -> AdapterHomes:
    route = route_base(base_model=deployment.base_model.name)
    assert route is not None
    return route.homes.get(name, AdapterHomes())


def overdue(rule: AdapterRule) -> None:
    """Gateways have known for long that it leaves."""
    past = (timezone.now() - timedelta(seconds=1)).isoformat()
    leaving = {copy: past if at else at for copy, at in rule.leaving.items()}
    AdapterRule.objects.filter(pk=rule.pk).update(leaving=leaving)


def aged(seconds: int) -> None:
    AdapterRule.objects.update(changed_at=timezone.now() - timedelta(seconds=seconds))


def test_a_refused_move_waits(
    deployment: Deployment, register: Register, servers: dict[str, ResidentServer]
) -> None:
    name = register("plain").engine_name
    adapter_pin(deployment=deployment, engine_name=name, on=[A])
    reconcile(deployment)
    servers[B].refuses["POST", "/resident"] = 400
    adapter_move(deployment=deployment, engine_name=name, source=A, to=B)
    kept = reconcile(deployment)
    assert (kept.within, name in kept.failed) == (None, True)
    assert homes(deployment, name) == AdapterHomes((A,), ()), "the first copy serves it meanwhile"


def test_what_passes_is_tried_again_ever_later(
    deployment: Deployment, register: Register, servers: dict[str, ResidentServer]
) -> None:
    adapter_pin(deployment=deployment, engine_name=register("plain").engine_name, on=[A])
    servers[A].refuses["POST", "/resident"] = 503
    assert reconcile(deployment) == Outcome(SOON)
    aged(20)
    within = reconcile(deployment).within
    assert within is not None
    assert 20 <= within.total_seconds() < 25
    aged(900)
    assert reconcile(deployment).within == timedelta(seconds=60)


def test_a_worker_of_the_release_before_is_told(
    deployment: Deployment, register: Register, servers: dict[str, ResidentServer]
) -> None:
    name = register("plain").engine_name
    servers[A].refuses["GET", "/resident"] = 404
    adapter_pin(deployment=deployment, engine_name=name, on=[A])
    kept = reconcile(deployment)
    assert kept.within is None
    assert "upgrade it" in kept.failed
    assert "upgrade it" in AdapterRule.objects.get().reason


def test_homes_are_told_once_a_look_and_again_where_they_were_lost(
    deployment: Deployment, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [register("plain", f"bot{number}").engine_name for number in range(3)]
    for name in names:
        adapter_pin(deployment=deployment, engine_name=name, on=[A])
    path = f"bases/{deployment.base_model.name}"
    before = RouteDelta.objects.filter(path=path).count()
    reconcile(deployment)
    assert RouteDelta.objects.filter(path=path).count() == before + 1
    reconcile(deployment)
    assert RouteDelta.objects.filter(path=path).count() == before + 1

    def lose() -> None:
        row = RouteEntryRow.objects.get(path=path)
        del row.entry["homes"]
        row.save()

    lose()
    reconcile(deployment)
    assert homes(deployment, names[2]) == AdapterHomes((A,), ())
    # Where there is not even time for one rule, too.
    lose()
    monkeypatch.setattr(reconciler, "MAX_SECONDS", -1.0)
    assert reconcile(deployment).within == SOON
    assert homes(deployment, names[2]) == AdapterHomes((A,), ())
    # And where there are no rules any more.
    AdapterRule.objects.all().delete()
    reconcile(deployment)
    assert homes(deployment, names[2]) == AdapterHomes()


def test_no_copy_drops_what_gateways_were_not_told_of(
    deployment: Deployment,
    register: Register,
    servers: dict[str, ResidentServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = register("plain")
    adapter_pin(deployment=deployment, engine_name=version.engine_name, on=[A])
    reconcile(deployment)
    adapter_move(deployment=deployment, engine_name=version.engine_name, source=A, to=B)

    def die(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reconciler, "homes_publish", die)
        with pytest.raises(KeyboardInterrupt):
            reconcile(deployment)
    at = datetime.fromisoformat(AdapterRule.objects.get().leaving[A])
    assert at > timezone.now() + timedelta(minutes=1)
    reconcile(deployment)
    assert homes(deployment, version.engine_name) == AdapterHomes((B,), (A,))
    at = datetime.fromisoformat(AdapterRule.objects.get().leaving[A])
    assert timezone.now() < at <= timezone.now() + timedelta(seconds=2)
    assert version.sha256 in servers[A].held


def test_rules_that_end_in_one_look_have_left(
    deployment: Deployment, register: Register, servers: dict[str, ResidentServer]
) -> None:
    first, second = register("plain", "one"), register("plain", "two")
    for version in (first, second):
        adapter_pin(deployment=deployment, engine_name=version.engine_name, on=[A])
    reconcile(deployment)
    unregister(first)
    unregister(second)
    for _ in range(4):
        reconcile(deployment)
    assert not AdapterRule.objects.exists()
    causes = list(deployment.steps.filter(action="evict_adapter").values_list("cause", flat=True))
    assert sorted(causes) == [f"{A} keeps the adapter under another name", f"has left {A}"]
    assert not servers[A].held


def test_one_rule_that_ends_has_left(deployment: Deployment, register: Register) -> None:
    version = register("plain")
    adapter_pin(deployment=deployment, engine_name=version.engine_name, on=[A])
    reconcile(deployment)
    unregister(version)
    for _ in range(3):
        reconcile(deployment)
    (cause,) = deployment.steps.filter(action="evict_adapter").values_list("cause", flat=True)
    assert cause == f"has left {A}"


def test_a_move_of_two_keeps_its_source_while_the_target_is_gone(
    deployment: Deployment, register: Register, servers: dict[str, ResidentServer]
) -> None:
    version = register("plain")
    name = version.engine_name
    adapter_pin(deployment=deployment, engine_name=name, on=[A, B])
    reconcile(deployment)
    servers[C].refuses["POST", "/resident"] = 503
    adapter_move(deployment=deployment, engine_name=name, source=A, to=C)
    reconcile(deployment)
    Copy.objects.filter(pk=C).delete()
    reconcile(deployment)
    rule = AdapterRule.objects.get()
    assert (sorted(rule.on), rule.leaving, rule.status) == ([A, B], {}, "ready")
    assert servers[A].held == {version.sha256: True}


def test_keeping_away_ends_with_the_copy_and_says_so(deployment: Deployment, register: Register) -> None:
    name = register("plain").engine_name
    adapter_evict(deployment=deployment, engine_name=name, copies=[A], keep_away=True)
    reconcile(deployment)
    Copy.objects.filter(pk=A).delete()
    reconcile(deployment)
    assert A in deployment.steps.get(action="keep_away").cause


def test_a_strange_answer_to_an_eviction_is_looked_at_again(
    deployment: Deployment, register: Register, servers: dict[str, ResidentServer]
) -> None:
    version = register("plain")
    adapter_pin(deployment=deployment, engine_name=version.engine_name, on=[A])
    reconcile(deployment)
    servers[A].gone = False
    adapter_move(deployment=deployment, engine_name=version.engine_name, source=A, to=B)
    reconcile(deployment)
    overdue(AdapterRule.objects.get())
    assert reconcile(deployment).within == SOON
    assert "unexpected response" in AdapterRule.objects.get().reason
    residency = WorkerResidency(servers[B].url, {})
    servers[B].refuses["GET", "/resident"] = 404
    with pytest.raises(ProvisioningError, match="upgrade it"):
        residency.memory()
    residency.close()


def test_memories_have_one_deadline(deployment: Deployment, servers: dict[str, ResidentServer]) -> None:
    servers[B].refuses["GET", "/resident"] = 503
    copies = list(deployment.copies.order_by("id"))
    read = memories_read(copies, seconds=10)
    assert [isinstance(found, ProvisioningError) for found in read.values()] == [False, True, False]
    servers[B].speaks.clear()
    late = memories_read(copies, seconds=0.5)
    servers[B].speaks.set()
    assert list(late) == [A, B, C]
    assert isinstance(late[B], ProvisioningError)
    assert "within 0.5 s" in str(late[B])


def test_of_servers_that_know_names_each_name_is_its_own(
    deployment: Deployment, register: Register, servers: dict[str, ResidentServer]
) -> None:
    """vLLM forgets one name; the other one of the same content stays registered."""
    Copy.objects.filter(pk=A).update(kind=Copy.Kind.OPENAI_HTTP)
    first, second = register("plain", "one"), register("plain", "two")
    for version in (first, second):
        adapter_pin(deployment=deployment, engine_name=version.engine_name, on=[A])
    reconcile(deployment)
    assert servers[A].names == {first.engine_name, second.engine_name}
    unregister(first)
    for _ in range(3):
        reconcile(deployment)
    assert servers[A].names == {second.engine_name}


def test_a_copy_that_cannot_serve_the_adapter_gets_no_pin(deployment: Deployment, register: Register) -> None:
    version = register("plain")
    version.traits = ["dora"]
    version.save()
    adapter_publish(adapter=version.adapter)
    Copy.objects.filter(pk=A).update(engine="vllm", engine_version="0.32.0")
    adapter_pin(deployment=deployment, engine_name=version.engine_name, copies=3)
    reconcile(deployment)
    rule = AdapterRule.objects.get(deployment=deployment)
    assert sorted(rule.on) == [B, C]
    assert rule.reason == "the adapter is on 2 of 3 desired copies: no other copy can serve it"
