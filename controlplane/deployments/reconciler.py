"""Drives a deployment from what there is to what is wanted: see, act, see again, write down.

One run does what can be done now and says when to look again. It may die anywhere: what it made is found
by the next one, since a provisioner keeps nothing in mind (`provisioners.base`), and what it wrote is
written while it held the lease.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Case, DateTimeField, F, Q, Value, When
from django.utils import timezone

from controlplane.deployments.desired import desired_of, endpoint_is_shared
from controlplane.deployments.leases import Lease, LeaseLostError
from controlplane.deployments.models import AdapterRule, Deployment, DeploymentStep, Placement, Target
from controlplane.deployments.phases.recorder import open_ones, scale_ups_observe
from controlplane.deployments.placement.keeper import Kept, rules_keep
from controlplane.deployments.placements import drain_time, placements_settle, placements_sync
from controlplane.deployments.provisioners import provisioner_of
from controlplane.deployments.provisioners.base import (
    Desired,
    Observation,
    Place,
    Provisioner,
    ProvisioningError,
    State,
    Step,
)
from controlplane.deployments.rollouts.decisions import rollout_look, rollout_refused, rollout_told
from controlplane.deployments.served import is_draining, places_serve
from controlplane.deployments.steps import step_add
from controlplane.errors import ControlPlaneError
from controlplane.platform.audit.services import audit_record

logger = logging.getLogger(__name__)
Status = Deployment.Status
Outcome = DeploymentStep.Outcome

MAX_RUN_SECONDS: Final = 30.0
"""Then the next run goes on, so that no deployment keeps a worker from the others."""
_DECISIONS: Final = 5
"""Of a rollout's in one run."""
POLL: Final = timedelta(seconds=2)
GROWTH: Final = timedelta(seconds=5)
"""While SageMaker grows: when a machine came is told by looks alone."""
CHECK: Final = timedelta(seconds=60)
"""How often what serves is compared with what is wanted."""
RETRY: Final = timedelta(minutes=5)
"""After that what failed is made anew."""
_FIRST_BACKOFF, _MAX_BACKOFF = 2.0, 120.0
_TOLD_AT: Final = 3
"""Looks in a row that were refused, from which on what serves is degraded."""

Make = Callable[..., Provisioner]


def deployment_reconcile(*, deployment_id: int, make: Make = provisioner_of, due: bool = False) -> bool:
    """One run. Does nothing while another process drives this deployment.

    Args:
        make: the provisioner of a target and a desired state, `provisioner_of`'s signature.
        due: does nothing before the time of the next look, either.

    Returns:
        whether it was this one's turn.
    """
    lease = Lease.take(deployment_id=deployment_id, due=due)
    if lease is None:
        return False
    try:
        _Run(lease, make).run()
    except LeaseLostError:
        logger.warning("deployment %d: another process has taken over", deployment_id)
    finally:
        lease.release()
    return True


def backoff(failures: int, *, wait: float = 0.0, chance: random.Random | None = None) -> float:
    """Seconds until the next look after so many failures in a row: doubled each time, with full jitter on
    the upper half, so that deployments that were throttled together do not come back together."""
    longest: float = min(_FIRST_BACKOFF * 2.0 ** min(failures, 10), _MAX_BACKOFF)
    return max(wait, longest * (chance or random.SystemRandom()).uniform(0.5, 1.0))


@dataclass(slots=True)
class _Run:
    """`made` counts this run's steps that went well: what holds up the next one has not held up these."""

    lease: Lease
    make: Make
    made: int = 0

    def run(self) -> None:
        for _ in range(_DECISIONS):
            if not self._once():
                return
        self.lease.write(next_at=timezone.now())

    def _once(self) -> bool:
        """A look, and what follows from it; whether a rollout has changed the desired state."""
        deployment = Deployment.objects.select_related("target", "base_model").get(
            pk=self.lease.deployment_id
        )
        try:
            deployment.routes_version = placements_sync(deployment=deployment)
            desired = desired_of(deployment)
            with closing(self.make(deployment.target, desired, beat=self.lease.renew)) as provisioner:
                if deployment.is_wanted:
                    return self._keep(deployment, desired, provisioner)
                self._remove(deployment, provisioner, shared=desired.endpoint_is_shared)
        except ProvisioningError as error:
            if rollout_refused(deployment=deployment, error=error, renew=self._renew):
                return True
            self._refused(deployment, error)
        except ControlPlaneError as error:
            self._refused(deployment, ProvisioningError(str(error), transient=True))
        return False

    def _keep(self, deployment: Deployment, desired: Desired, provisioner: Provisioner) -> bool:
        seen = provisioner.observe()
        for text in seen.drift:
            step_add(deployment, "drift", "", text, Outcome.NOTED)
        self._serve(deployment, seen.places)
        if rollout_look(deployment=deployment, desired=desired, seen=seen, renew=self._renew):
            return True
        count, held = self._do(deployment, provisioner.apply(seen))
        if count:
            seen = provisioner.observe()
            self._serve(deployment, seen.places)
        placements_settle(deployment=deployment, seen=seen.adapters)
        scale_ups_observe(deployment=deployment, seen=seen)
        kept = rules_keep(deployment=deployment, renew=self.lease.renew)
        if held is not None:
            raise held
        rolling = "" if desired.turn is None else rollout_told(deployment=deployment)
        self._settle(deployment, seen, rolling, kept)
        return False

    def _renew(self) -> None:
        self.lease.renew(now=True)

    def _remove(self, deployment: Deployment, provisioner: Provisioner, *, shared: bool) -> None:
        """Routes first, then, when the last requests are over, what they led to."""
        now = timezone.now()
        if deployment.drained_at is None:
            led = self._serve(deployment, ())
            deployment.drained_at = now + drain_time() if led else now
            self.lease.write(drained_at=deployment.drained_at)
        if deployment.drained_at > now:
            reason = "its last requests are given time to end"
            self.lease.write(status=Status.REMOVING, reason=reason, next_at=deployment.drained_at)
            return
        seen = provisioner.observe()
        _, held = self._do(deployment, provisioner.remove(seen))
        if held is not None:
            raise held
        seen = provisioner.observe()
        if seen.empty:
            self._removed(deployment, shared=shared)
            return
        self.lease.write(
            status=Status.REMOVING, reason=seen.waiting, resources=_told(seen), observed_at=now,
            failures=0, next_at=now + POLL,
        )  # fmt: skip

    def _serve(self, deployment: Deployment, places: Sequence[Place]) -> bool:
        """As `places_serve`, by the owner only: nobody takes over before its commit."""
        with transaction.atomic():
            self._renew()
            return places_serve(deployment=deployment, places=places)

    def _do(self, deployment: Deployment, steps: Iterator[Step]) -> tuple[int, ProvisioningError | None]:
        """Takes steps while there is time; how many, and what ended them that will pass by itself.

        Raises:
            ProvisioningError: a refusal that will not.
        """
        began, count = time.monotonic(), 0
        with closing(steps):  # type: ignore[type-var]  # a generator
            while time.monotonic() - began < MAX_RUN_SECONDS:
                self.lease.renew()
                at = time.monotonic()
                try:
                    step = next(steps, None)
                except ProvisioningError as error:
                    if not error.transient:
                        raise
                    return count, error
                if step is None:
                    break
                seconds = time.monotonic() - at
                outcome = Outcome.FAILED if step.failed else Outcome.DONE
                cause = f"{step.cause}: {step.failed}" if step.failed else step.cause
                step_add(deployment, step.action, step.resource, cause, outcome, seconds=seconds)
                count += 1
                self.made += not step.failed
        return count, None

    def _settle(self, deployment: Deployment, seen: Observation, rolling: str, kept: Kept) -> None:
        """`rolling`: what a rollout that is under way waits for."""
        now, was = timezone.now(), deployment.status
        broken = [row for row in deployment.placements.all() if row.status == Placement.Status.FAILED]
        values: dict[str, Any] = {"resources": _told(seen), "observed_at": now, "failures": 0}
        if seen.failed:
            status, reason, wait = (Status.DEGRADED if seen.places else Status.FAILED), seen.failed, RETRY
        elif rolling:
            status, reason, wait = Status.WORKING, rolling, POLL
        elif broken:
            status, wait = Status.DEGRADED, RETRY
            reason = (
                f"{len(broken)} of its adapters failed; the first, {broken[0].engine_name}: "
                f"{broken[0].reason}"
            )
        elif seen.unscaled and seen.places:
            status, reason, wait = Status.DEGRADED, seen.unscaled, POLL if seen.waiting else CHECK
        elif seen.copies_complete and kept.failed:
            status, reason, wait = Status.DEGRADED, kept.failed, CHECK
        elif seen.complete:
            status, reason, wait = Status.SERVING, "", CHECK
            values["observed_generation"] = deployment.generation
        elif seen.copies_complete and was in (Status.SERVING, Status.DEGRADED):
            # Adapters come and go all day: nobody is to be woken for one that is merely new.
            status, reason, wait = Status.SERVING, _moving(deployment, seen), POLL
        else:
            serves = seen.places and was in (Status.SERVING, Status.DEGRADED)
            status, reason, wait = (Status.DEGRADED if serves else Status.WORKING), seen.waiting, POLL
        if is_draining(deployment) or deployment.placements.exclude(leaves_at=None).exists():
            wait = min(wait, drain_time())
        if kept.within is not None:
            wait = min(wait, kept.within)
        if seen.instances is not None and open_ones(deployment).exists():
            wait = min(wait, GROWTH)
        retry_at = _retry_at(deployment, now) if seen.failed or broken else None
        if status in (Status.FAILED, Status.DEGRADED) and (was, deployment.reason) != (status, reason):
            step_add(deployment, "look", "", reason, Outcome.FAILED if seen.failed else Outcome.NOTED)
        times = _times(deployment, now + wait, retry_at)
        self.lease.write(status=status, reason=reason, **values, **times)

    def _refused(self, deployment: Deployment, error: ProvisioningError) -> None:
        # Hundreds of calls are throttled now and then, and a quota is given back one by one: who got on is
        # not made to wait as long as who did not.
        failures, least = (1, 0.0) if self.made else (deployment.failures + 1, error.wait)
        logger.warning("deployment %s: %s", deployment.name, error)
        if str(error) != deployment.reason:
            step_add(deployment, "call", "", str(error), Outcome.FAILED)
        wait = timedelta(seconds=backoff(failures, wait=least)) if error.transient else RETRY
        if error.transient and deployment.placements.exclude(leaves_at=None).exists():
            wait = min(wait, drain_time())
        status = Status.REMOVING if not deployment.is_wanted else deployment.status
        if deployment.is_wanted and not error.transient:
            status = Status.DEGRADED if deployment.copies.exists() else Status.FAILED
        elif deployment.is_wanted and deployment.status == Status.PENDING:
            status = Status.WORKING
        elif deployment.is_wanted and deployment.status == Status.SERVING and failures >= _TOLD_AT:
            # A call that is refused once passes by itself; a quota, or credentials, do not.
            status = Status.DEGRADED
        now = timezone.now()
        retry_at = deployment.retry_at if error.transient else _retry_at(deployment, now)
        times = _times(deployment, now + wait, retry_at)
        self.lease.write(status=status, reason=str(error), failures=failures, **times)

    def _removed(self, deployment: Deployment, *, shared: bool) -> None:
        """Unless this run left the endpoint to another deployment that has gone meanwhile."""
        now = timezone.now()
        with transaction.atomic():
            # One at a time, so that of two that go together the second finds the first one gone.
            Target.objects.select_for_update().get(pk=deployment.target_id)
            if shared and not endpoint_is_shared(deployment):
                self.lease.write(reason="its endpoint is left to it", next_at=now)
                return
            Placement.objects.filter(deployment=deployment).delete()
            AdapterRule.objects.filter(deployment=deployment).delete()
            step_add(deployment, "removed", "", "nothing of it is left")
            self.lease.write(
                status=Status.REMOVED, reason="", resources=[], observed_at=now, removed_at=now, failures=0
            )
            audit_record(tenant="", action="deployment.removed", target=deployment, after={"removed_at": now})


def _moving(deployment: Deployment, seen: Observation) -> str:
    """What is still on its way while all copies serve."""
    count = Counter(deployment.placements.values_list("status", flat=True))
    coming, leaving = count["waiting"] + count["loading"], count["leaving"]
    told = [f"{coming} of its adapters are being placed"] if coming else []
    told += [f"{leaving} leave"] if leaving else []
    return ", ".join(told) or seen.waiting or "what is not wanted any more is being taken away"


def _retry_at(deployment: Deployment, now: datetime) -> datetime:
    """When what has failed is made anew: a time that is not over yet stands."""
    at = deployment.retry_at
    return at if at is not None and at > now else now + RETRY


def _times(deployment: Deployment, next_at: datetime, retry_at: datetime | None) -> dict[str, Case]:
    """When to look again, and to make anew; what a change or a retry during this run has set stands."""
    unchanged, moment = Q(generation=deployment.generation), DateTimeField()
    return {
        "next_at": Case(When(unchanged, then=Value(next_at)), default=F("next_at"), output_field=moment),
        "retry_at": Case(
            When(unchanged, then=Value(retry_at, moment)), default=F("retry_at"), output_field=moment
        ),
    }


def _told(seen: Observation) -> list[dict[str, Any]]:
    return [
        {
            "kind": item.kind,
            "name": item.name,
            "state": item.state.value,
            "reason": item.reason,
            "has": dict(item.has),
            "stale": item.stale,
        }
        for item in seen.resources
        if item.state is not State.ABSENT
    ]
