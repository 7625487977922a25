"""A reconciler that is killed between any two calls of its provisioner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners import provisioner_of
from controlplane.deployments.provisioners.base import Desired, Observation, Provisioner, Step
from controlplane.deployments.reconciler import Make, deployment_reconcile
from tests.controlplane.deployments.conftest import orphan


class KilledError(BaseException):
    """Stands for SIGKILL: nothing in the control plane catches it."""


class Dying:
    """A provisioner that dies right after its n-th call, before anybody has heard of it."""

    def __init__(self, inner: Provisioner, left: list[int], calls: list[str] | None = None) -> None:
        self._inner, self._left = inner, left
        self._calls = [] if calls is None else calls

    def observe(self) -> Observation:
        return self._inner.observe()

    def apply(self, seen: Observation) -> Iterator[Step]:
        return self._counted(self._inner.apply(seen))

    def remove(self, seen: Observation) -> Iterator[Step]:
        return self._counted(self._inner.remove(seen))

    def close(self) -> None:
        self._inner.close()

    def _counted(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            self._calls.append(f"{step.action} {step.resource}")
            self._left[0] -= 1
            if self._left[0] == 0:
                raise KilledError
            yield step


def dying_after(calls: int) -> Make:
    left = [calls]

    def make(target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Provisioner:
        return Dying(provisioner_of(target, desired, heartbeat=heartbeat), left)

    return make


def killed_at_each_call(deployment: Deployment, until: Callable[[Deployment], bool]) -> list[str]:
    """Drives it by reconcilers each of which dies right after its first call; the calls, in order.

    So there is a death between any two calls, and whoever comes next knows nothing of the last one.
    """
    calls: list[str] = []

    def make(target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Provisioner:
        return Dying(provisioner_of(target, desired, heartbeat=heartbeat), [1], calls)

    for _ in range(2000):
        try:
            deployment_reconcile(deployment_id=deployment.pk, make=make)
            time.sleep(0.1)
        except KilledError:
            orphan(deployment)
        deployment.refresh_from_db()
        if until(deployment):
            return calls
    raise AssertionError(f"still {deployment.status} ({deployment.reason}) after {calls}")
