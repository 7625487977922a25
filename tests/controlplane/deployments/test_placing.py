"""Adapters pinned, moved and evicted on real workers, while a real gateway sends requests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone

from contracts.base_routes import AdapterHomes, BaseRoute
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import AdapterRule, Deployment
from controlplane.deployments.placement.rules import adapter_evict, adapter_move, adapter_pin, adapter_unpin
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_create, deployment_remove, deployment_update
from controlplane.deployments.targets.services import target_create
from controlplane.errors import ConflictError
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.deployments.conftest import (
    TOKEN,
    Register,
    drive,
    port_of,
    removed,
    serving,
    unregister,
)
from tests.controlplane.deployments.test_local import ENVIRONMENT, wait, workers
from tests.gateway.conftest import GatewayProcess
from tests.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("forked_workers")]
CALLERS = 4


@pytest.fixture
def pair(tiny: BaseModel, local_root: Path) -> Iterator[Deployment]:
    """Two workers of the tiny base."""
    made = deployment_create(
        name="tiny",
        target=target_create(name="here", kind="local"),
        base_model=tiny,
        min_copies=2,
        max_copies=4,
        environment=ENVIRONMENT,
    )
    yield drive(made, serving, pause=wait)
    deployment_remove(deployment=made)
    drive(made, removed, pause=wait)
    assert AdapterRule.objects.count() == 0


def resident(deployment: Deployment, copy: str, sha256: str) -> dict[str, Any] | None:
    """Return a worker's own report of an adapter."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    told = httpx.get(f"{deployment.copies.get(pk=copy).url}/resident", headers=headers, timeout=30).json()
    return next((item for item in told["adapters"] if item["sha256"] == sha256), None)


def homes(base: BaseModel, name: str) -> AdapterHomes:
    entry = RouteEntryRow.objects.get(path=f"bases/{base.name}").entry
    return BaseRoute.from_dict(entry).homes.get(name, AdapterHomes())


def rule_is(name: str, *statuses: str) -> Callable[[Deployment], bool]:
    def check(deployment: Deployment) -> bool:
        return deployment.adapter_rules.filter(engine_name=name, status__in=statuses).exists()

    return check


def no_rule(deployment: Deployment) -> bool:
    return not deployment.adapter_rules.exists()


@dataclass
class Load:
    """Callers in a closed loop, with each answer; none may be a refusal."""

    url: str
    key: str
    model: str
    answers: Counter[tuple[int, bool]] = field(default_factory=Counter)

    @contextmanager
    def running(self) -> Iterator[Load]:
        # A version's route reaches the gateway a moment after its registration.
        eventually(self._is_listed)
        over = threading.Event()
        threads = [threading.Thread(target=self._call, args=(over,)) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            self.goes_on()
            yield self
            self.goes_on()
        finally:
            over.set()
            for thread in threads:
                thread.join(60)

    @property
    def count(self) -> int:
        return sum(self.answers.values())

    def goes_on(self) -> None:
        """Return once each caller has been answered again."""
        before = self.count
        eventually(lambda: self.count > before + 2 * CALLERS)

    def _is_listed(self) -> bool:
        listed = httpx.get(
            f"{self.url}/v1/models", headers={"authorization": f"Bearer {self.key}"}, timeout=60
        )
        return any(model["id"] == self.model for model in listed.json()["data"])

    def _call(self, over: threading.Event) -> None:
        body = {"model": self.model, "prompt": "hello", "max_tokens": 20, "ignore_eos": True, "stream": True}
        with httpx.Client(headers={"authorization": f"Bearer {self.key}"}, timeout=60) as client:
            while not over.is_set():
                answer = client.post(f"{self.url}/v1/completions", json=body)
                self.answers[answer.status_code, answer.text.rstrip().endswith("[DONE]")] += 1


@pytest.fixture
def load(pair: Deployment, tenant: Tenant, redis_url: str, tmp_path: Path) -> Iterator[Load]:
    """A gateway before the two workers."""
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    environ = {"GRAFTWORK_FLEET_TOKEN": TOKEN}
    gateway = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "gateway.log", environ=environ)
    try:
        gateway.start()
        yield Load(gateway.url, key, "other")
    finally:
        gateway.stop()


@pytest.mark.costly("starts several workers")
def test_a_moved_adapter_fails_no_request_and_leaves_the_first_copy(
    pair: Deployment, tiny: BaseModel, register: Register, load: Load
) -> None:
    version = register("plain", "other")
    name, sha256 = version.engine_name, version.sha256
    first, second = pair.copies.order_by("created_at", "id").values_list("pk", flat=True)
    adapter_pin(deployment=pair, engine_name=name, on=[first])
    drive(pair, rule_is(name, "ready"), pause=wait)
    told = resident(pair, first, sha256)
    assert told is not None
    assert told["pinned"] == ["placement"], "loaded ahead of any request"
    assert resident(pair, second, sha256) is None
    assert homes(tiny, name) == AdapterHomes((first,), ())

    with load.running():
        adapter_move(deployment=pair, engine_name=name, source=first, to=second)
        with pytest.raises(ConflictError, match="pinned on"):
            adapter_evict(deployment=pair, engine_name=name, copies=[second])
        assert homes(tiny, name).at == (first,), "nothing leads there before it is loaded"
        # One look may meet a worker that is too busy to answer.
        moved = AdapterHomes((second,), (first,))
        drive(pair, lambda row: homes(tiny, name) == moved, pause=wait)
        told = resident(pair, second, sha256)
        assert told is not None
        assert told["pinned"] == ["placement"]
        drive(pair, rule_is(name, "ready"), pause=wait)
        assert resident(pair, first, sha256) is None
        assert homes(tiny, name) == AdapterHomes((second,), ())
        load.goes_on()
        assert resident(pair, first, sha256) is None, "new requests go to the second alone"
        busy = resident(pair, second, sha256)
        assert busy is not None
        assert busy["requests"] or busy["idle_seconds"] < 5
    assert set(load.answers) == {(200, True)}
    steps = list(pair.steps.filter(resource=name).order_by("pk").values_list("action", flat=True))
    assert steps == ["adapter.pin", "load_adapter", "adapter.move", "load_adapter", "evict_adapter"]
    verbs = AuditRecord.objects.filter(action__startswith="adapter_rule.").order_by("pk")
    assert list(verbs.values_list("action", flat=True)) == ["adapter_rule.pin", "adapter_rule.move"]
    pair.refresh_from_db()
    assert pair.status == Deployment.Status.SERVING

    adapter_unpin(deployment=pair, engine_name=name)
    drive(pair, no_rule, pause=wait)
    told = resident(pair, second, sha256)
    assert told is not None
    assert told["pinned"] == [], "it stays until room is needed"
    assert homes(tiny, name) == AdapterHomes()


@pytest.mark.costly("starts several workers")
def test_an_evicted_adapter_comes_back_with_the_next_request_unless_it_is_kept_away(
    pair: Deployment, tiny: BaseModel, register: Register, load: Load
) -> None:
    version = register("plain", "other")
    name, sha256 = version.engine_name, version.sha256
    copies = list(pair.copies.order_by("created_at", "id").values_list("pk", flat=True))

    def where() -> list[str]:
        return [copy for copy in copies if resident(pair, copy, sha256)]

    with load.running():
        eventually(lambda: len(where()) == 1)
        (home,) = where()
        adapter_evict(deployment=pair, engine_name=name, copies=[home], keep_away=True)
        drive(pair, rule_is(name, "ready"), pause=wait)
        assert homes(tiny, name) == AdapterHomes((), (home,))
        load.goes_on()
        assert where() == [copy for copy in copies if copy != home]
    adapter_evict(deployment=pair, engine_name=name)
    drive(pair, rule_is(name, "ready"), pause=wait)
    assert where() == []
    adapter_unpin(deployment=pair, engine_name=name)
    drive(pair, no_rule, pause=wait)
    with load.running():
        eventually(lambda: len(where()) == 1)
    assert set(load.answers) == {(200, True)}


@pytest.mark.costly("starts several workers")
def test_a_pin_follows_its_count_over_copies_that_go_and_versions_that_go(
    pair: Deployment, tiny: BaseModel, register: Register, local_root: Path
) -> None:
    version = register("plain", "bot")
    name, sha256 = version.engine_name, version.sha256
    # The highest number ends: it has the pin.
    folders = {item.option("--port"): item.option("--adapter-cache-dir") for item in workers(local_root)}
    ends = max(pair.copies.all(), key=lambda copy: folders[str(port_of(copy.url))]).pk
    adapter_pin(deployment=pair, engine_name=name, on=[ends])
    drive(pair, rule_is(name, "ready"), pause=wait)
    deployment_update(deployment=pair, min_copies=1)
    drive(pair, lambda row: serving(row) and row.copies.count() == 1, pause=wait)
    (left,) = pair.copies.values_list("pk", flat=True)
    assert left != ends
    drive(pair, rule_is(name, "ready"), pause=wait)
    assert pair.adapter_rules.get().on == [left]
    told = resident(pair, left, sha256)
    assert told is not None
    assert told["pinned"] == ["placement"]

    adapter_pin(deployment=pair, engine_name=name, copies=2)
    drive(pair, rule_is(name, "waiting"), pause=wait)
    assert "of 2 desired copies" in pair.adapter_rules.get().reason
    pair.refresh_from_db()
    assert pair.status == Deployment.Status.SERVING

    unregister(version)
    drive(pair, no_rule, pause=wait)
    assert resident(pair, left, sha256) is None, "nobody can call it any more"
    assert pair.steps.filter(action="evict_adapter").exists()


@pytest.mark.costly("starts several workers")
def test_what_a_copy_refuses_is_told(pair: Deployment, tiny: BaseModel, register: Register) -> None:
    version = register("plain", "bot")
    folder = Path(str(version.uri).removeprefix("file://"))
    weights = folder / "adapter_model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    adapter_pin(deployment=pair, engine_name=version.engine_name)
    drive(pair, lambda row: row.status == Deployment.Status.DEGRADED, pause=wait)
    rule = pair.adapter_rules.get()
    assert rule.status == "failed"
    assert version.engine_name in pair.reason
    assert rule.reason in pair.reason
    assert homes(tiny, version.engine_name) == AdapterHomes(), "gateways go on as without it"
    assert pair.next_at is not None
    assert pair.next_at < timezone.now() + timedelta(seconds=61), "looked at as often as others"
    deployment_update(deployment=pair, min_copies=3)
    deployment_reconcile(deployment_id=pair.pk)
    pair.refresh_from_db()
    assert version.engine_name not in pair.reason, "what starts is told first"
    assert pair.next_at < timezone.now() + timedelta(seconds=3)
