"""What a look at a job of SageMaker's has in common, whatever the job is: its troubles and its end.

A look keeps nothing: names follow from the work's number, so whoever comes after one that died goes on.
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
LOOK_S: Final = 10.0
"""Between two looks: SageMaker's states last minutes."""
_TROUBLE_S: Final = 60.0
GIVE_UP: Final = dt.timedelta(minutes=15)
"""Since a cancel: a job that can be neither seen nor stopped then is left to whoever has the account."""
_COMPLETED: Final = ("COMPLETED", "Completed")
"""SageMaker's words for what has left an output: nothing more is refused then but looks at that."""
READ_WITHIN: Final = dt.timedelta(hours=24)
"""Since it was refused first: an output that can still not be read then is given up."""
RowT = TypeVar("RowT", OptimizationJob, Assessment)


class Look(ABC, Generic[RowT]):
    """The look that `claim` is for."""

    MADE_WITHIN: ClassVar[dt.timedelta]
    """Since it was asked for: what SageMaker has not taken by then, and still does not, has failed."""

    def __init__(self, claim: Claim, row: RowT) -> None:
        self._claim = claim
        self._row: RowT = row
        self._told: dict[str, Any] = dict(row.remote.get("told", {}))
        self._over = False
        self._output_stays = False
        """What SageMaker made is not removed with the rest."""

    @abstractmethod
    def _go_on(self, account: Account, target: Target, store: Store) -> None:
        """One look further: ends the work (`_end`) or has it looked at again (`_again`)."""

    @abstractmethod
    def _clear(self, account: Account, target: Target, store: Store) -> None:
        """Removes what the work, which has ended, left in the account. Raises ProvisioningError."""

    def run(self) -> None:
        """Ends with the row in a state that says what is so, and the lease given back."""
        target = self._row.target
        if target is None:
            self._end(Status.FAILED, "its target was removed", "sagemaker")
            return
        try:
            account = Account.of(target)
        except ProvisioningError as error:
            self._refused(error)
            return
        with closing(account):
            self._look(account, target)
            if self._over:
                self._cleared(account, target)

    def _look(self, account: Account, target: Target) -> None:
        try:
            if not self._lost_too_often():
                self._go_on(account, target, Store(account, target, beat=self._claim.renew))
        except ProvisioningError as error:
            self._refused(error)
        except UnavailableError as error:
            self._trouble(str(error), _TROUBLE_S)
        except (ControlPlaneError, OSError) as error:
            if self._told:
                self._trouble(str(error), _TROUBLE_S)
            else:
                code = "source" if isinstance(error, InvalidInputError) else "failed"
                self._end(Status.FAILED, str(error), code)

    def _lost_too_often(self) -> bool:
        """Before SageMaker has it; afterwards it goes on whatever becomes of us."""
        if self._row.lost_attempts < MOST_LOST or self._told.get("status"):
            return False
        text = f"its process vanished {self._row.lost_attempts} times in a row before SageMaker had it"
        self._end(Status.FAILED, f"{text}: the machine may have too little memory", "worker_failed")
        return True

    def _absent(self) -> bool:
        """Ends or puts off what SageMaker does not have; False where it is to be made."""
        asked_at = self._row.cancel_asked_at
        if self._told.get("status") and asked_at is None:
            text = f"{self._told['name']} was removed in the account: ask for it again to have it made anew"
            self._end(Status.FAILED, text, "sagemaker")
        elif asked_at is None:
            return False
        elif not self._told.get("status") and timezone.now() - asked_at <= LEASE:
            # Whoever had the lease before may be about to make it.
            self._again("", LOOK_S)
        else:
            self._end(Status.CANCELLED, "cancelled", "")
        return True

    def _refused(self, error: ProvisioningError) -> None:
        asked_at = self._row.cancel_asked_at
        if self._told.get("status") in _COMPLETED:
            self._unreadable(error)
        elif asked_at is not None and timezone.now() - asked_at > GIVE_UP:
            text = f"cancelled, and {self._told.get('name', 'the job')} may run on in the account: {error}"
            self._end(Status.CANCELLED, text, "sagemaker")
        elif error.transient or self._told.get("status"):
            # What SageMaker works on is not over because it cannot be seen.
            self._trouble(str(error), max(error.wait, LOOK_S if error.transient else _TROUBLE_S))
        else:
            self._end(Status.FAILED, str(error), "sagemaker")

    def _trouble(self, reason: str, seconds: float) -> None:
        late = timezone.now() - self._row.created_at > self.MADE_WITHIN
        if late and not self._told.get("status") and self._row.cancel_asked_at is None:
            hours = self.MADE_WITHIN / dt.timedelta(hours=1)
            self._end(Status.FAILED, f"SageMaker has not taken it within {hours:g} h: {reason}", "sagemaker")
        else:
            self._again(reason, seconds)

    def _unreadable(self, error: ProvisioningError) -> None:
        """Tries an output again that cannot be read now, in a phase that says so, and not for ever.

        One that is given up stays where it lies: SageMaker's hours are in it.
        """
        if self._row.cancel_asked_at is not None:
            self._end(Status.CANCELLED, "cancelled", "")
            return
        now, first = timezone.now(), "unreadable_since" not in self._told
        since = dt.datetime.fromisoformat(self._told.setdefault("unreadable_since", now.isoformat()))
        uri = self._told["request"]["OutputConfig"]["S3OutputLocation"]
        if now - since > READ_WITHIN:
            self._output_stays = True
            hours = READ_WITHIN / dt.timedelta(hours=1)
            text = f"what SageMaker made could not be read for {hours:g} h, and stays under {uri}: {error}"
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
            status=status, reason=reason[:4000], lost_attempts=0,
            next_at=timezone.now() + dt.timedelta(seconds=seconds),
        )  # fmt: skip

    def _end(self, status: Status, reason: str, code: str, **kept: Any) -> None:
        """The end comes first: an account that lets nothing be removed keeps no work open."""
        with transaction.atomic():
            # One that cannot be seen any more was there until it was seen last.
            attempts_close(self._row)
            work_end(self._claim, status, reason, code, **kept)
        self._over = True

    def _cleared(self, account: Account, target: Target) -> None:
        try:
            self._clear(account, target, Store(account, target, beat=_given_back))
        except ProvisioningError as error:
            logger.warning("%s: what it left in the account stays: %s", self._row, error)
            event_add(self._row, "left", f"what it left in {target.name} could not be removed: {error}")

    def _keep(self, **values: Any) -> None:
        self._claim.write(remote={**self._row.remote, "told": self._told}, **values)


def _given_back() -> None:
    """There is no lease any more."""
