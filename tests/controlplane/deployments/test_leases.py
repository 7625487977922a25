"""Leases: one owner at a time, also after a crash or a pause; and the backoff after a refusal."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import redis
from django.db import connection
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from contracts.adapters.reference import AdapterRef
from contracts.route_table import AdapterRoute
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.endpoints import copies_sync
from controlplane.deployments.leases import Lease, LeaseLostError
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.placement.placements import placements_sync
from controlplane.deployments.provisioners.base import (
    Desired,
    Endpoint,
    Observation,
    Provisioner,
    ProvisioningError,
    Step,
    ThrottledError,
)
from controlplane.deployments.reconciler import RETRY, backoff, deployment_reconcile
from controlplane.deployments.scheduling import EXPIRES_S, deployments_sweep
from controlplane.deployments.services import deployment_create, deployment_retry, deployment_update
from controlplane.deployments.targets.services import target_create
from controlplane.routes.selectors import route_version
from controlplane.routes.services import route_remove, route_set

pytestmark = pytest.mark.django_db


@pytest.fixture
def deployment(base_model: BaseModel) -> Deployment:
    target = target_create(name="vllm", kind="openai_http", urls=["http://127.0.0.1:1"])
    return deployment_create(name="tiny", target=target, base_model=base_model)


class Failing:
    """A target that refuses everything with one error; `taken` counts reconciles."""

    def __init__(self, error: Exception) -> None:
        self._error, self.taken = error, 0

    def __call__(self, target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Provisioner:
        return self

    def observe(self) -> Observation:
        self.taken += 1
        raise self._error

    def apply(self, seen: Observation) -> Iterator[Step]:
        yield from ()

    def remove(self, seen: Observation) -> Iterator[Step]:
        yield from ()

    def close(self) -> None:
        pass


def test_a_lease_keeps_others_away_until_it_expires(deployment: Deployment) -> None:
    held = Lease.take(deployment_id=deployment.pk)
    assert held is not None
    assert Lease.take(deployment_id=deployment.pk) is None
    assert not deployment_reconcile(deployment_id=deployment.pk)
    Deployment.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    other = Lease.take(deployment_id=deployment.pk)
    assert other is not None
    with pytest.raises(LeaseLostError):
        held.write(reason="too late")
    held.release()
    other.write(reason="in time")
    deployment.refresh_from_db()
    assert (deployment.reason, deployment.lease_owner) == ("in time", other.owner)
    other.release()
    assert Lease.take(deployment_id=deployment.pk) is not None


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_gets_it(deployment: Deployment) -> None:
    taken: list[Lease] = []
    ready = threading.Barrier(8)

    def take() -> None:
        ready.wait()
        try:
            if lease := Lease.take(deployment_id=deployment.pk):
                taken.append(lease)
        finally:
            connection.close()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1


def test_throttling_backs_off_further_each_time_and_is_told_once(deployment: Deployment) -> None:
    waits = []
    for _ in range(5):
        before = timezone.now()
        deployment_reconcile(
            deployment_id=deployment.pk, make=Failing(ThrottledError("AWS throttled the call;"))
        )
        deployment.refresh_from_db()
        waits.append((deployment.next_at - before).total_seconds())
    assert [2 <= wait <= 4.5 for wait in waits[:1]] == [True]
    assert waits[4] > 4 * waits[0]
    assert deployment.failures == 5
    assert deployment.status == Deployment.Status.WORKING
    assert deployment.steps.filter(outcome="failed").count() == 1


def test_what_no_patience_helps_fails_at_once_and_is_tried_again_when_told(deployment: Deployment) -> None:
    target = Failing(ProvisioningError("The role may not do this: allow it."))
    deployment_reconcile(deployment_id=deployment.pk, make=target)
    deployment.refresh_from_db()
    assert deployment.status == Deployment.Status.FAILED
    assert deployment.next_at > timezone.now() + RETRY - timedelta(seconds=5)
    assert deployments_sweep() == 0
    deployment_retry(deployment=deployment)
    assert deployments_sweep() == 1


@pytest.mark.parametrize("transient", [True, False])
def test_what_serves_is_degraded_when_its_target_goes_on_refusing(
    deployment: Deployment, base_model: BaseModel, transient: bool
) -> None:
    copies_sync(deployment=deployment, endpoints=[Endpoint("openai_http", "http://127.0.0.1:2")])
    Deployment.objects.update(status=Deployment.Status.SERVING)
    target = Failing(ProvisioningError("The credentials have expired: renew them.", transient=transient))
    told = []
    for _ in range(3):
        deployment_reconcile(deployment_id=deployment.pk, make=target)
        deployment.refresh_from_db()
        told.append(deployment.status)
    assert told == (["serving", "serving", "degraded"] if transient else ["degraded"] * 3)
    assert deployment.reason == "The credentials have expired: renew them."
    assert deployment.copies.exists(), "what serves goes on"


def test_who_has_lost_the_lease_changes_no_route(deployment: Deployment, base_model: BaseModel) -> None:
    class Slow(Failing):
        def observe(self) -> Observation:
            Deployment.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
            assert Lease.take(deployment_id=deployment.pk) is not None
            return Observation(endpoints=(Endpoint("openai_http", "http://127.0.0.1:2"),))

    deployment_reconcile(deployment_id=deployment.pk, make=Slow(ValueError()))
    assert deployment.copies.count() == 0


def test_a_second_message_for_one_look_is_late(deployment: Deployment) -> None:
    throttled = Failing(ThrottledError("AWS throttled the call;"))
    assert deployment_reconcile(deployment_id=deployment.pk, make=throttled, due=True)
    assert not deployment_reconcile(deployment_id=deployment.pk, make=throttled, due=True)
    assert throttled.taken == 1, "the backoff stands, however many messages there are"


@pytest.mark.django_db(transaction=True)
def test_messages_of_sweeps_that_nobody_takes_expire(deployment: Deployment, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.delete("graftwork.deployments")
        assert deployments_sweep() == 1
        (message,) = client.lrange("graftwork.deployments", 0, -1)
    headers = json.loads(message)["headers"]
    assert headers["task"] == "deployments.reconcile"
    left = parse_datetime(headers["expires"])
    assert left is not None
    assert timedelta(seconds=5) < left - timezone.now() <= timedelta(seconds=EXPIRES_S)


def test_a_change_of_routes_makes_those_due_whom_it_concerns(deployment: Deployment) -> None:
    later = timezone.now() + timedelta(hours=1)
    Deployment.objects.update(next_at=later, routes_version=route_version())
    assert deployments_sweep() == 0
    ref = AdapterRef("t_acme.a_bot.v1.abababababab", "file:///a/", "ab" * 32, 2)
    route_set(path="adapters/acme/other", entry=AdapterRoute("another-base", 1, {1: ref}))
    assert deployments_sweep() == 0, "another base's"
    route_set(path="adapters/acme/bot", entry=AdapterRoute("tiny-base", 1, {1: ref}))
    assert deployments_sweep() == 1
    Deployment.objects.update(next_at=later, routes_version=route_version())
    route_remove(path="adapters/acme/bot")
    assert deployments_sweep() == 1, "a removal names no base"


def test_a_target_that_says_when_to_come_back_is_heeded() -> None:
    assert backoff(1, wait=500.0) == 500.0
    chance = random.Random(1)
    spread = [backoff(3, chance=chance) for _ in range(200)]
    assert 8.0 <= min(spread) < 9.0
    assert 15.0 < max(spread) <= 16.0
    assert backoff(50) <= 120.0


def test_a_hand_that_changes_it_meanwhile_is_not_forgotten(deployment: Deployment) -> None:
    """A change during a reconcile makes the row due at once instead of after a minute."""

    class Changing(Failing):
        def observe(self) -> Observation:
            deployment_update(deployment=deployment, urls=["http://127.0.0.1:2"])
            return Observation(complete=True)

    deployment_reconcile(deployment_id=deployment.pk, make=Changing(ValueError()))
    deployment.refresh_from_db()
    assert deployment.generation == 2
    assert deployment.next_at <= timezone.now()


@pytest.mark.parametrize("error", [None, ProvisioningError("The role may not do this: allow it.")])
def test_a_retry_during_a_look_is_not_forgotten(deployment: Deployment, error: Exception | None) -> None:
    class Retried(Failing):
        def observe(self) -> Observation:
            deployment_retry(deployment=deployment)
            if error:
                raise error
            return Observation(failed="It does not start.")

    deployment_reconcile(deployment_id=deployment.pk, make=Retried(ValueError()))
    deployment.refresh_from_db()
    assert deployment.next_at <= timezone.now()
    assert deployment.retry_at is not None
    assert deployment.retry_at <= timezone.now(), "what failed is made anew at the next look"


def test_a_change_of_scope_between_a_look_and_its_placements_is_not_forgotten(deployment: Deployment) -> None:
    ref = AdapterRef("t_acme.a_bot.v1.abababababab", "file:///a/", "ab" * 32, 2)
    route_set(path="adapters/acme/bot", entry=AdapterRoute("tiny-base", 1, {1: ref}))
    read = Deployment.objects.get(pk=deployment.pk)
    deployment_update(deployment=deployment, adapter_scope="named")
    placements_sync(deployment=read)
    deployment.refresh_from_db()
    assert deployment.routes_version == 0
