"""A rollout's canary: new copies get an exact share of callers, by a real gateway before real workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone

from contracts.base_routes import BaseRoute, CanaryRoute
from controlplane.canaries.judgement import deployment_rollout_judge
from controlplane.canaries.sides import rollout_sides
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy, Deployment, DeploymentRollout
from controlplane.deployments.rollouts.services import deployment_rollout_pause, deployment_rollout_start
from controlplane.deployments.services import deployment_create, deployment_remove
from controlplane.deployments.targets.services import target_create
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.routes.models import RouteCounter, RouteEntryRow
from controlplane.routes.services import route_publish_now
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from gateway.routing.splits import choose_arm
from tests.controlplane.deployments.conftest import TOKEN, Register, drive, removed, serving
from tests.controlplane.deployments.test_local import deploy, wait, workers
from tests.controlplane.deployments.test_placing import Load
from tests.controlplane.deployments.test_rollouts import AT_ONCE, NEW, ended, is_new, rollout_steps
from tests.controlplane.metering.test_ingest import drain
from tests.gateway.conftest import ControlPlane, GatewayProcess, control_plane  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.costly("starts gateways and workers")]
Status = DeploymentRollout.Status
USERS = [f"user-{number}" for number in range(60)]


@pytest.fixture
def pair(tiny: BaseModel, local_root: Path) -> Iterator[Deployment]:
    """Two workers of the tiny base."""
    made = drive(deploy(tiny, min_copies=2), serving, pause=wait)
    yield made
    deployment_remove(deployment=made)
    drive(made, removed, pause=wait)


@pytest.fixture
def load(pair: Deployment, tenant: Tenant, redis_url: str, tmp_path: Path) -> Iterator[Load]:
    """A gateway before them."""
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    # The gateway starts with routes that have the key.
    route_publish_now()
    environ = {"GRAFTWORK_FLEET_TOKEN": TOKEN}
    gateway = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "gateway.log", environ=environ)
    try:
        gateway.start()
        yield Load(gateway.url, key, "tiny-base")
    finally:
        gateway.stop()


def route(base: BaseModel) -> BaseRoute:
    return BaseRoute.from_dict(RouteEntryRow.objects.get(path=f"bases/{base.name}").entry)


def tries(base: BaseModel, percent: int) -> Callable[[Deployment], bool]:
    """A condition: gateways route `percent` to the new copies; 0: they route by load."""

    def check(_: Deployment) -> bool:
        canary = route(base).canary
        return (0 if canary is None else canary.percent) == percent

    return check


def start(deployment: Deployment, **policy: Any) -> DeploymentRollout:
    wanted = AT_ONCE | {"wait_seconds": 600, "shares": [20, 50]} | policy
    return deployment_rollout_start(deployment=deployment, change=NEW, strategy="canary", policy=wanted)


def known_everywhere(load: Load) -> None:
    """The gateway has all changes."""
    version = RouteCounter.objects.get().version

    def is_current() -> bool:
        return bool(httpx.get(f"{load.url}/readyz", timeout=60).json()["routes_version"] >= version)

    wait_until(is_current, "the gateway has not been told of the routes")


def hurry(rollout: DeploymentRollout) -> None:
    """The policy's time of this step is over."""
    long_ago = timezone.now() - timedelta(seconds=601)
    DeploymentRollout.objects.filter(pk=rollout.pk).update(ready_at=long_ago)


def ask(load: Load, model: str = "tiny-base") -> list[int]:
    """One request of each user, statuses."""
    headers = {"authorization": f"Bearer {load.key}"}

    def call(user: str) -> int:
        body = {"model": model, "prompt": "hi", "max_tokens": 2, "ignore_eos": True, "user": user}
        return httpx.post(f"{load.url}/v1/completions", json=body, headers=headers, timeout=60).status_code

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(call, USERS))


def asked_where(load: Load, plane: ControlPlane, model: str = "tiny-base") -> dict[str, str]:
    """Return the copy that answered each user. Users call in order, and the order identifies them."""
    headers, found = {"authorization": f"Bearer {load.key}"}, {}
    with httpx.Client(headers=headers, timeout=60) as client:
        for user in USERS:
            body = {"model": model, "prompt": "hi", "max_tokens": 1, "ignore_eos": True, "user": user}
            answer = client.post(f"{load.url}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            found[answer.headers["x-request-id"]] = user
    endpoints: dict[str, str] = {}

    def known() -> bool:
        endpoints.update({event.request_id: event.endpoint for event in plane.events()})
        return set(found) <= set(endpoints)

    wait_until(known, "the gateway has not shipped its usage")
    return {user: endpoints[request] for request, user in found.items()}


def wait_until(known: Callable[[], bool], otherwise: str) -> None:
    for _ in range(100):
        if known():
            return
        wait()
    raise AssertionError(otherwise)


def side(rollout: DeploymentRollout, tenant: str, percent: int, user: str) -> int:
    """0: the others', 1: the new copies'; what the documents promise, by its own arithmetic."""
    return choose_arm([(0, 100 - percent), (1, percent)], f"rollout-{rollout.pk}\0{tenant}\0{user}")


def test_each_caller_is_where_its_hash_says_and_stays_there_as_the_share_grows(
    pair: Deployment,
    tiny: BaseModel,
    register: Register,
    tenant: Tenant,
    load: Load,
    control_plane: ControlPlane,  # noqa: F811
    redis_url: str,
) -> None:
    register("plain", "other")
    old = set(pair.copies.values_list("pk", flat=True))
    rollout = start(pair)
    drive(pair, tries(tiny, 20), pause=wait)
    (new,) = set(pair.copies.values_list("pk", flat=True)) - old
    current = route(tiny)
    assert current.canary == CanaryRoute(f"rollout-{rollout.pk}", 20, (new,))
    assert {copy.id for copy in current.copies} == old | {new}, "none of the others has left"
    copy = Copy.objects.get(pk=new)
    assert (copy.canary, copy.percent) == (f"rollout-{rollout.pk}", 20)
    known_everywhere(load)

    seen = asked_where(load, control_plane)
    wanted = {user for user in USERS if side(rollout, str(tenant.pk), 20, user)}
    assert {user for user, at in seen.items() if at == new} == wanted
    assert 0 < len(wanted) < len(USERS) / 2
    assert set(seen.values()) - {new} <= old
    of_adapter = asked_where(load, control_plane, "other")
    assert {user for user, at in of_adapter.items() if at == new} == wanted, "adapters' requests, too"

    hurry(rollout)
    drive(pair, tries(tiny, 50), pause=wait)
    known_everywhere(load)
    grown = {user for user, at in asked_where(load, control_plane).items() if at == new}
    assert grown == {user for user in USERS if side(rollout, str(tenant.pk), 50, user)}
    assert wanted < grown

    drain(redis_url)
    rollout.refresh_from_db()
    fresh, others = rollout_sides(rollout=rollout)
    assert (fresh.side, fresh.copies, fresh.requests) == ("new", (new,), 2 * len(wanted) + len(grown))
    assert others.requests == 3 * len(USERS) - fresh.requests
    assert (fresh.failed, others.failed) == (0, 0)
    assert fresh.completion_tokens == fresh.requests, "a token each"
    assert fresh.p50_ms is not None
    # Judged by the same time of both sides, not by the others' hour before.
    DeploymentRollout.objects.filter(pk=rollout.pk).update(
        policy=rollout.policy | {"max_error_increase": 0.02}
    )
    rollout.refresh_from_db()
    verdict = deployment_rollout_judge(rollout=rollout)
    assert verdict is not None
    assert verdict.figures["stable"]["requests"] == len(USERS) - len(grown), "of this step alone"


def test_to_its_end_under_load_no_request_fails_and_all_copies_are_new(
    pair: Deployment, tiny: BaseModel, local_root: Path, load: Load
) -> None:
    seen: list[tuple[int, int, int]] = []

    def meanwhile() -> None:
        current = route(tiny)
        canary = current.canary
        now = (
            len(current.copies),
            0 if canary is None else canary.percent,
            len(canary.copies) if canary else 0,
        )
        if now not in seen[-1:]:
            seen.append(now)
        wait()

    with load.running():
        rollout = start(pair, wait_seconds=1)
        drive(pair, ended(rollout, Status.COMPLETED), pause=meanwhile)
    assert set(load.answers) == {(200, True)}
    assert seen == [(2, 0, 0), (3, 20, 1), (3, 50, 1), (2, 0, 0)]
    assert [is_new(item) for item in workers(local_root)] == [True, True]
    steps = [row.cause for row in pair.steps.filter(action__in=("rollout.step", "rollout.completed"))]
    told_steps = "\n".join(reversed(steps))
    for text in (
        "1 new copies get 20 % of callers",
        "get 50 % of callers",
        "all 2 new copies are starting",
        "stand by",
    ):
        assert text in told_steps
    assert not Copy.objects.exclude(canary="").exists()


def test_a_new_copy_that_dies_fails_nobody_and_takes_the_canary_back(
    pair: Deployment, tiny: BaseModel, local_root: Path, load: Load
) -> None:
    rollout = start(pair, shares=[50])
    drive(pair, tries(tiny, 50), pause=wait)
    known_everywhere(load)
    (worker,) = (item for item in workers(local_root) if is_new(item))
    os.kill(worker.pid, signal.SIGKILL)
    assert set(ask(load)) == {200}, "its callers are the others' while it is away"
    drive(pair, ended(rollout, Status.ROLLED_BACK), pause=wait)
    assert "ended while it served" in rollout.reason
    assert route(tiny).canary is None
    assert [is_new(item) for item in workers(local_root)] == [False, False]
    assert rollout_steps(pair)[:3] == ["start", "ready", "step"]


@pytest.mark.usefixtures("cold_worker_start")
def test_a_new_copy_too_busy_to_answer_a_look_is_judged_as_a_new_one(
    pair: Deployment, tiny: BaseModel, local_root: Path
) -> None:
    rollout = start(pair, shares=[50])
    drive(pair, tries(tiny, 50), pause=wait)
    (new,) = Copy.objects.exclude(canary="").values_list("pk", flat=True)
    (worker,) = (item for item in workers(local_root) if is_new(item))
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        drive(pair, lambda _: Copy.objects.exclude(silent_since=None).exists(), pause=wait)
        drive(pair, lambda _: True)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    rollout.refresh_from_db()
    assert rollout.copies["new"] == [new]
    assert new not in rollout.copies["old"]


def test_paused_it_stays_at_its_share(pair: Deployment, tiny: BaseModel) -> None:
    rollout = start(pair)
    drive(pair, tries(tiny, 20), pause=wait)
    deployment_rollout_pause(rollout=rollout)
    hurry(rollout)
    for _ in range(5):
        drive(pair, lambda _: True)
    assert tries(tiny, 20)(pair)


def test_what_is_wrong_is_refused(tiny: BaseModel) -> None:
    here = deploy(tiny)
    target = target_create(name="servers", kind="openai_http", urls=["http://a", "http://b"])
    there = deployment_create(name="there", target=target, base_model=tiny)
    Deployment.objects.update(status="serving")
    for policy, strategy in (
        ({"shares": [50, 20]}, "canary"),
        ({"shares": [0]}, "canary"),
        ({"shares": [100]}, "canary"),
        ({"shares": list(range(1, 13))}, "canary"),
        ({"shares": [True]}, "canary"),
        ({"shares": [5]}, "rolling"),
    ):
        with pytest.raises(InvalidInputError) as caught:
            deployment_rollout_start(deployment=here, change=NEW, strategy=strategy, policy=policy)
        assert caught.value.field == "policy.shares"
    for endless in ({"wait_seconds": 900}, {"wait_seconds": 300, "max_seconds": 600, "shares": [5]}):
        with pytest.raises(InvalidInputError, match="exceed max_seconds") as caught:
            deployment_rollout_start(deployment=here, change=NEW, strategy="canary", policy=endless)
        assert caught.value.field == "policy.wait_seconds"
    with pytest.raises(InvalidInputError, match="a serves already"):
        deployment_rollout_start(
            deployment=there, change={"urls": ["http://a", "http://c"]}, strategy="canary"
        )
    rollout = deployment_rollout_start(deployment=here, change=NEW, strategy="canary")
    assert rollout.policy["shares"] == [5, 25, 50]
    with pytest.raises(ConflictError, match="a canary of the same base model"):
        deployment_rollout_start(deployment=there, change={"urls": ["http://c"]}, strategy="canary")
