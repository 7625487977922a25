"""The base of a poll of a SageMaker job: errors, retries, cancels and the end of the work.

A poll holds no state: names follow from the work's primary key, so any process can continue.
"""

from __future__ import annotations

import datetime as dt
import logging
from abc import ABC, abstractmethod
from contextlib import closing
from typing import Any, ClassVar, Final, Generic, TypeVar

from django.db import transaction
from django.utils import timezone

from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.errors import ControlPlaneError, InvalidInputError, UnavailableError
from controlplane.optimization.claims import LEASE, MOST_LOST, Claim
from controlplane.optimization.endings import attempts_close, work_end
from controlplane.optimization.events import event_add
from controlplane.optimization.models import Assessment, OptimizationJob, Status

logger = logging.getLogger(__name__)
POLL_S: Final = 10.0
"""Seconds between two polls: SageMaker's states last minutes."""
_TROUBLE_S: Final = 60.0
GIVE_UP: Final = dt.timedelta(minutes=15)
"""After a cancel: a job that can be neither read nor stopped by then is left to the account's owner."""
_COMPLETED: Final = ("COMPLETED", "Completed")
"""SageMaker's statuses of a job with an output: later errors can only come from reading that output."""
READ_WITHIN: Final = dt.timedelta(hours=24)
"""After the first failed read: an output that is still unreadable by then is given up."""
RowT = TypeVar("RowT", OptimizationJob, Assessment)


class JobPoll(ABC, Generic[RowT]):
    """One poll of the SageMaker job under `claim`."""

    MADE_WITHIN: ClassVar[dt.timedelta]
    """After the work's creation: a job that SageMaker has not accepted by then has failed."""

    def __init__(self, claim: Claim, row: RowT) -> None:
        self._claim = claim
        self._row: RowT = row
        self._remote: dict[str, Any] = dict(row.remote.get("told", {}))
        self._over = False
        self._output_stays = False
        """True if SageMaker's output must survive the cleanup."""

    @abstractmethod
    def _go_on(self, account: Account, target: Target, store: Store) -> None:
        """Poll the job: end the work (`_end`) or have it polled again (`_again`)."""

    @abstractmethod
    def _clear(self, account: Account, target: Target, store: Store) -> None:
        """Remove what the ended work left in the account. Raises ProvisioningError."""

    def run(self) -> None:
        """Poll the job; record the outcome in the row and release the lease, whatever happens."""
        target = self._row.target
        if target is None:
            self._end(Status.FAILED, "its target was removed", "sagemaker")
            return
        try:
            account = Account.from_target(target)
        except ProvisioningError as error:
            self._refused(error)
            return
        with closing(account):
            self._poll(account, target)
            if self._over:
                self._cleared(account, target)

    def _poll(self, account: Account, target: Target) -> None:
        try:
            if not self._lost_too_often():
                self._go_on(account, target, Store(account, target, heartbeat=self._claim.renew))
        except ProvisioningError as error:
            self._refused(error)
        except UnavailableError as error:
            self._trouble(str(error), _TROUBLE_S)
        except (ControlPlaneError, OSError) as error:
            if self._remote:
                self._trouble(str(error), _TROUBLE_S)
            else:
                code = "source" if isinstance(error, InvalidInputError) else "failed"
                self._end(Status.FAILED, str(error), code)

    def _lost_too_often(self) -> bool:
        """End a work whose process vanished too often before SageMaker accepted the job."""
        if self._row.lost_attempts < MOST_LOST or self._remote.get("status"):
            return False
        text = (
            f"its process vanished {self._row.lost_attempts} times in a row before SageMaker accepted the job"
        )
        self._end(Status.FAILED, f"{text}: the machine may have too little memory", "worker_failed")
        return True

    def _absent(self) -> bool:
        """End or put off a job that SageMaker does not have; return False if it must be created."""
        asked_at = self._row.cancel_asked_at
        if self._remote.get("status") and asked_at is None:
            text = f"{self._remote['name']} was removed in the account: request the job again to recreate it"
            self._end(Status.FAILED, text, "sagemaker")
        elif asked_at is None:
            return False
        elif not self._remote.get("status") and timezone.now() - asked_at <= LEASE:
            # The previous lease holder may be about to create the job.
            self._again("", POLL_S)
        else:
            self._end(Status.CANCELLED, "cancelled", "")
        return True

    def _refused(self, error: ProvisioningError) -> None:
        asked_at = self._row.cancel_asked_at
        if self._remote.get("status") in _COMPLETED:
            self._unreadable(error)
        elif asked_at is not None and timezone.now() - asked_at > GIVE_UP:
            text = f"cancelled, and {self._remote.get('name', 'the job')} may run on in the account: {error}"
            self._end(Status.CANCELLED, text, "sagemaker")
        elif error.transient or self._remote.get("status"):
            # A job that SageMaker accepted goes on even while it cannot be read.
            self._trouble(str(error), max(error.wait, POLL_S if error.transient else _TROUBLE_S))
        else:
            self._end(Status.FAILED, str(error), "sagemaker")

    def _trouble(self, reason: str, seconds: float) -> None:
        late = timezone.now() - self._row.created_at > self.MADE_WITHIN
        if late and not self._remote.get("status") and self._row.cancel_asked_at is None:
            hours = self.MADE_WITHIN / dt.timedelta(hours=1)
            self._end(
                Status.FAILED, f"SageMaker has not accepted the job within {hours:g} h: {reason}", "sagemaker"
            )
        else:
            self._again(reason, seconds)

    def _unreadable(self, error: ProvisioningError) -> None:
        """Put off the reading of an output, in phase `unreadable`, for at most READ_WITHIN.

        An output that is given up stays in S3: it cost hours of SageMaker time.
        """
        if self._row.cancel_asked_at is not None:
            self._end(Status.CANCELLED, "cancelled", "")
            return
        now, first = timezone.now(), "unreadable_since" not in self._remote
        since = dt.datetime.fromisoformat(self._remote.setdefault("unreadable_since", now.isoformat()))
        uri = self._remote["request"]["OutputConfig"]["S3OutputLocation"]
        if now - since > READ_WITHIN:
            self._output_stays = True
            hours = READ_WITHIN / dt.timedelta(hours=1)
            text = f"SageMaker's output could not be read for {hours:g} h, and stays under {uri}: {error}"
            self._end(Status.FAILED, text, "unreadable")
            return
        self._keep(phase="unreadable")
        if first:
            event_add(self._row, "unreadable", f"{uri}: {error}")
        self._again(str(error), max(error.wait, _TROUBLE_S))

    def _again(self, reason: str, seconds: float, *, status: Status = Status.RUNNING) -> None:
        if self._row.cancel_asked_at is not None:
            status = Status.CANCELLING
        self._claim.release(
            status=status,
            reason=reason[:4000],
            lost_attempts=0,
            next_at=timezone.now() + dt.timedelta(seconds=seconds),
        )

    def _end(self, status: Status, reason: str, code: str, **fields: Any) -> None:
        """End the work before the cleanup, so that a failing cleanup keeps no work open."""
        with transaction.atomic():
            # The job ran at least until its last poll: meter it up to there.
            attempts_close(self._row)
            work_end(self._claim, status, reason, code, **fields)
        self._over = True

    def _cleared(self, account: Account, target: Target) -> None:
        try:
            self._clear(account, target, Store(account, target, heartbeat=_no_lease))
        except ProvisioningError as error:
            logger.warning("%s: the cleanup of the account failed: %s", self._row, error)
            event_add(self._row, "left", f"the cleanup of {target.name} failed: {error}")

    def _keep(self, **values: Any) -> None:
        self._claim.write(remote={**self._row.remote, "told": self._remote}, **values)


def _no_lease() -> None:
    """Heartbeat of the cleanup, which runs without a lease."""
