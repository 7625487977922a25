"""Drive a deployment from its observed to its desired state: observe, act, observe again, record.

One run does what is possible now and schedules the next one. It may crash anywhere: the next run finds what
it created, since a provisioner keeps no state (`provisioners.base`). A run writes only while it holds the
lease.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Case, DateTimeField, F, Q, Value, When
from django.utils import timezone

from controlplane.deployments.capabilities import RunningEngine
from controlplane.deployments.copies.endpoints import copies_sync, drain_time, is_draining
from controlplane.deployments.desired import desired_of, endpoint_is_shared
from controlplane.deployments.journal import step_add
from controlplane.deployments.leases import Lease, LeaseLostError
from controlplane.deployments.models import Deployment, DeploymentStep, Target
from controlplane.deployments.phases.recorder import open_scale_ups, scale_ups_observe
from controlplane.deployments.placement.placements import (
    placements_are_leaving,
    placements_failure,
    placements_remove,
    placements_settle,
    placements_sync,
    placements_transition,
)
from controlplane.deployments.placement.reconciler import Outcome as PlacementOutcome
from controlplane.deployments.placement.reconciler import reconcile_placements
from controlplane.deployments.provisioners import provisioner_of
from controlplane.deployments.provisioners.base import (
    Desired,
    Endpoint,
    Observation,
    Provisioner,
    ProvisioningError,
    State,
    Step,
)
from controlplane.deployments.rollouts.decisions import rollout_decide, rollout_refused, rollout_summary
from controlplane.errors import ControlPlaneError
from controlplane.platform.audit.services import audit_record

logger = logging.getLogger(__name__)
Status = Deployment.Status
Outcome = DeploymentStep.Outcome

MAX_RUN_SECONDS: Final = 30.0
"""Longest run; the next one continues, so that no deployment blocks a Celery worker."""
_DECISIONS: Final = 5
"""Limit of a rollout's decisions in one run."""
POLL: Final = timedelta(seconds=2)
GROWTH: Final = timedelta(seconds=5)
"""Interval while SageMaker scales up: only observations show when an instance was added."""
CHECK: Final = timedelta(seconds=60)
"""Interval at which a serving deployment is compared with its desired state."""
RETRY: Final = timedelta(minutes=5)
"""Delay after which failed resources are recreated."""
_FIRST_BACKOFF, _MAX_BACKOFF = 2.0, 120.0
_DEGRADED_AFTER: Final = 3
"""Refused runs in a row from which on a serving deployment is degraded."""

Make = Callable[..., Provisioner]


def deployment_reconcile(*, deployment_id: int, make: Make = provisioner_of, due: bool = False) -> bool:
    """Run one reconciliation. Does nothing while another process holds the deployment's lease.

    Args:
        make: factory of the provisioner, with `provisioner_of`'s signature.
        due: also do nothing before `next_at`.

    Returns:
        True if this process held the lease.
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
    """Return the seconds until the next run after this many failures in a row.

    The delay doubles each time. Jitter on its upper half keeps deployments that were throttled together from
    returning together.
    """
    longest: float = min(_FIRST_BACKOFF * 2.0 ** min(failures, 10), _MAX_BACKOFF)
    return max(wait, longest * (chance or random.SystemRandom()).uniform(0.5, 1.0))


@dataclass(slots=True)
class _Run:
    """One run. `made` counts its successful steps, which the cause of a later refusal did not block."""

    lease: Lease
    make: Make
    made: int = 0

    def run(self) -> None:
        for _ in range(_DECISIONS):
            if not self._once():
                return
        self.lease.write(next_at=timezone.now())

    def _once(self) -> bool:
        """Observe and act once; return True if the desired state has changed meanwhile."""
        deployment = Deployment.objects.select_related("target", "base_model").get(
            pk=self.lease.deployment_id
        )
        try:
            deployment.routes_version = placements_sync(deployment=deployment)
            desired = desired_of(deployment)
            with closing(self.make(deployment.target, desired, heartbeat=self.lease.renew)) as provisioner:
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
        """Apply the desired state; return True if a rollout or a reported version has changed it."""
        seen = provisioner.observe()
        for text in seen.drift:
            step_add(deployment, "drift", "", text, Outcome.NOTED)
        engine = RunningEngine.of_deployment(deployment)
        self._serve(deployment, seen.endpoints)
        if RunningEngine.of_deployment(deployment) != engine:
            return True  # Choose the placements again, now that the servers have reported their version.
        if rollout_decide(deployment=deployment, desired=desired, seen=seen, renew=self._renew):
            return True
        count, held = self._do(deployment, provisioner.apply(seen))
        if count:
            seen = provisioner.observe()
            self._serve(deployment, seen.endpoints)
        placements_settle(deployment=deployment, seen=seen.adapters)
        scale_ups_observe(deployment=deployment, seen=seen)
        placement = reconcile_placements(deployment=deployment, renew=self.lease.renew)
        if held is not None:
            raise held
        rolling = "" if desired.stage is None else rollout_summary(deployment=deployment)
        self._settle(deployment, seen, rolling, placement)
        return False

    def _renew(self) -> None:
        self.lease.renew(now=True)

    def _remove(self, deployment: Deployment, provisioner: Provisioner, *, shared: bool) -> None:
        """Remove the routes first and, after the last requests have ended, the resources."""
        now = timezone.now()
        if deployment.drained_at is None:
            copy_left = self._serve(deployment, ())
            deployment.drained_at = now + drain_time() if copy_left else now
            self.lease.write(drained_at=deployment.drained_at)
        if deployment.drained_at > now:
            reason = "waiting for the last requests to end"
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
            status=Status.REMOVING,
            reason=seen.waiting,
            resources=_resource_rows(seen),
            observed_at=now,
            failures=0,
            next_at=now + POLL,
        )

    def _serve(self, deployment: Deployment, endpoints: Sequence[Endpoint]) -> bool:
        """Call `copies_sync` under the lease, which no other owner can take before the commit."""
        with transaction.atomic():
            self._renew()
            return copies_sync(deployment=deployment, endpoints=endpoints)

    def _do(self, deployment: Deployment, steps: Iterator[Step]) -> tuple[int, ProvisioningError | None]:
        """Take steps while there is time.

        Returns:
            the number of steps, and the transient error that ended them.

        Raises:
            ProvisioningError: a permanent refusal.
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

    def _settle(
        self, deployment: Deployment, seen: Observation, rolling: str, placement: PlacementOutcome
    ) -> None:
        """Write the status that follows from an observation, and when to run again.

        Args:
            rolling: what an active rollout waits for; "" without one.
        """
        now, was = timezone.now(), deployment.status
        broken = placements_failure(deployment)
        values: dict[str, Any] = {"resources": _resource_rows(seen), "observed_at": now, "failures": 0}
        if seen.failed:
            status, reason, wait = (Status.DEGRADED if seen.endpoints else Status.FAILED), seen.failed, RETRY
        elif rolling:
            status, reason, wait = Status.WORKING, rolling, POLL
        elif broken:
            status, reason, wait = Status.DEGRADED, broken, RETRY
        elif seen.unscaled and seen.endpoints:
            status, reason, wait = Status.DEGRADED, seen.unscaled, POLL if seen.waiting else CHECK
        elif seen.copies_complete and placement.failed:
            status, reason, wait = Status.DEGRADED, placement.failed, CHECK
        elif seen.complete:
            status, reason, wait = Status.SERVING, "", CHECK
            values["observed_generation"] = deployment.generation
        elif seen.copies_complete and was in (Status.SERVING, Status.DEGRADED):
            # A new adapter is routine: it must not degrade the status and alert an operator.
            moving = placements_transition(deployment) or seen.waiting
            reason = moving or "surplus resources are being removed"
            status, wait = Status.SERVING, POLL
        else:
            serves = seen.endpoints and was in (Status.SERVING, Status.DEGRADED)
            status, reason, wait = (Status.DEGRADED if serves else Status.WORKING), seen.waiting, POLL
        if is_draining(deployment) or placements_are_leaving(deployment):
            wait = min(wait, drain_time())
        if placement.within is not None:
            wait = min(wait, placement.within)
        if seen.instances is not None and open_scale_ups(deployment).exists():
            wait = min(wait, GROWTH)
        retry_at = _retry_at(deployment, now) if seen.failed or broken else None
        if status in (Status.FAILED, Status.DEGRADED) and (was, deployment.reason) != (status, reason):
            step_add(deployment, "look", "", reason, Outcome.FAILED if seen.failed else Outcome.NOTED)
        times = _times(deployment, now + wait, retry_at)
        self.lease.write(status=status, reason=reason, **values, **times)

    def _refused(self, deployment: Deployment, error: ProvisioningError) -> None:
        # Occasional throttling is normal, and quotas are freed one by one: a run that made progress waits
        # less than one that made none.
        failures, least = (1, 0.0) if self.made else (deployment.failures + 1, error.wait)
        logger.warning("deployment %s: %s", deployment.name, error)
        if str(error) != deployment.reason:
            step_add(deployment, "call", "", str(error), Outcome.FAILED)
        wait = timedelta(seconds=backoff(failures, wait=least)) if error.transient else RETRY
        if error.transient and placements_are_leaving(deployment):
            wait = min(wait, drain_time())
        status = Status.REMOVING if not deployment.is_wanted else deployment.status
        if deployment.is_wanted and not error.transient:
            status = Status.DEGRADED if deployment.copies.exists() else Status.FAILED
        elif deployment.is_wanted and deployment.status == Status.PENDING:
            status = Status.WORKING
        elif deployment.is_wanted and deployment.status == Status.SERVING and failures >= _DEGRADED_AFTER:
            # A single refusal often passes by itself; a quota or missing credentials do not.
            status = Status.DEGRADED
        now = timezone.now()
        retry_at = deployment.retry_at if error.transient else _retry_at(deployment, now)
        times = _times(deployment, now + wait, retry_at)
        self.lease.write(status=status, reason=str(error), failures=failures, **times)

    def _removed(self, deployment: Deployment, *, shared: bool) -> None:
        """Mark the deployment as removed.

        If another deployment shared the endpoint and was removed meanwhile, run again to delete the endpoint.
        """
        now = timezone.now()
        with transaction.atomic():
            # Lock the target so that the second of two simultaneous removals sees the first.
            Target.objects.select_for_update().get(pk=deployment.target_id)
            if shared and not endpoint_is_shared(deployment):
                self.lease.write(reason="its endpoint is kept", next_at=now)
                return
            placements_remove(deployment)
            step_add(deployment, "removed", "", "all of its resources are removed")
            self.lease.write(
                status=Status.REMOVED, reason="", resources=[], observed_at=now, removed_at=now, failures=0
            )
            audit_record(tenant="", action="deployment.removed", target=deployment, after={"removed_at": now})


def _retry_at(deployment: Deployment, now: datetime) -> datetime:
    """Return when failed resources are recreated; a time in the future is kept."""
    at = deployment.retry_at
    return at if at is not None and at > now else now + RETRY


def _times(deployment: Deployment, next_at: datetime, retry_at: datetime | None) -> dict[str, Case]:
    """Return `next_at` and `retry_at`, unless a change or a retry during this run has set them."""
    unchanged, moment = Q(generation=deployment.generation), DateTimeField()
    return {
        "next_at": Case(When(unchanged, then=Value(next_at)), default=F("next_at"), output_field=moment),
        "retry_at": Case(
            When(unchanged, then=Value(retry_at, moment)), default=F("retry_at"), output_field=moment
        ),
    }


def _resource_rows(seen: Observation) -> list[dict[str, Any]]:
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
