"""One look at a job that SageMaker does: asked for, seen, stopped, and its result made a variant.

A turn keeps nothing: names follow from the job's number, so whoever comes after one that died goes on.
"""

from __future__ import annotations

import datetime as dt
import logging
from contextlib import closing
from typing import Any, Final

from django.utils import timezone

from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.errors import failure_reason
from controlplane.errors import ControlPlaneError, InvalidInputError, UnavailableError
from controlplane.optimization.claims import Claim, ClaimLostError
from controlplane.optimization.endings import work_end
from controlplane.optimization.events import event_add
from controlplane.optimization.models import OptimizationJob, Status
from controlplane.optimization.sagemaker.keeping import remote_attempt, remote_keep
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.sagemaker.outputs import folder_remove, output_read
from controlplane.optimization.sagemaker.request import create_request, remote_name
from controlplane.optimization.sagemaker.sources import Uploads

logger = logging.getLogger(__name__)
LOOK_S: Final = 10.0
"""Between two looks: SageMaker's states last minutes."""
_TROUBLE_S: Final = 60.0
GIVE_UP: Final = dt.timedelta(minutes=15)
"""Since a cancel: a job that can be neither seen nor stopped then is left to whoever has the account."""
_PERCENT: Final = {"": 0.0, "STARTING": 2.0, "INPROGRESS": 10.0, "STOPPING": 10.0, "COMPLETED": 90.0}
"""SageMaker tells no more than a status."""


def remote_turn(*, pk: int) -> None:
    """Brings a job of SageMaker's one look further; nothing where another process is at it."""
    claim = Claim.take(kind=OptimizationJob.KIND, pk=pk)
    if claim is None:
        return
    try:
        RemoteTurn(claim).run()
    except ClaimLostError:
        logger.warning("optimization %s: another process has taken over", pk)


class RemoteTurn:
    """The turn that `claim` is for."""

    def __init__(self, claim: Claim) -> None:
        row = claim.row()
        if not isinstance(row, OptimizationJob):
            raise TypeError(f"{row._meta.label} is nothing that SageMaker does")
        self._claim, self._job = claim, row
        self._told: dict[str, Any] = dict(row.remote.get("told", {}))
        self._options = RemoteOptions.read(row.remote["options"])

    @property
    def _asked(self) -> bool:
        """Whether SageMaker may have the job."""
        return bool(self._told.get("name"))

    def run(self) -> None:
        """Ends with the row in a state that says what is so, and the lease given back."""
        target = self._job.target
        if target is None:
            work_end(self._claim, Status.FAILED, "its target was removed", "sagemaker")
            return
        try:
            with closing(Account.of(target)) as account:
                self._look(account, Store(account, target, beat=self._claim.renew))
        except ProvisioningError as error:
            self._refused(error)
        except UnavailableError as error:
            self._again(str(error), _TROUBLE_S)
        except (ControlPlaneError, OSError) as error:
            code = "source" if isinstance(error, InvalidInputError) else "failed"
            if self._asked:
                self._again(str(error), _TROUBLE_S)
            else:
                work_end(self._claim, Status.FAILED, str(error), code)

    def _look(self, account: Account, store: Store) -> None:
        if not self._asked:
            if self._job.cancel_asked_at is not None:
                work_end(self._claim, Status.CANCELLED, "cancelled", "")
                return
            self._ask(account, store)
        name = self._told["name"]
        seen = account.find("describe_optimization_job", name, OptimizationJobName=name)
        if seen is None and self._job.cancel_asked_at is not None:
            work_end(self._claim, Status.CANCELLED, "cancelled", "")
            return
        if seen is None:
            # Between the row and the call its process died, or someone removed it since.
            account.make("create_optimization_job", name, **self._told["request"])
            self._again("", LOOK_S)
            return
        self._status(account, store, name, seen)

    def _ask(self, account: Account, store: Store) -> None:
        """The row first: a job that is in the account is always known."""
        job, target = self._job, self._job.target
        assert target is not None
        uploads = Uploads(job, self._options, store, beat=self._claim.renew)
        name = remote_name(job, target)
        self._claim.write(phase="uploading", percent=1.0, started_at=job.started_at or timezone.now())
        request = create_request(
            job, target, self._options, weights=uploads.weights(), training=uploads.training(),
            output=store.url(f"optimized/{name}/"),
        )  # fmt: skip
        self._told = {"name": name, "request": request}
        self._keep()
        account.make("create_optimization_job", name, **request)
        event_add(job, "submitted", f"{name} to {target.name}")

    def _status(self, account: Account, store: Store, name: str, seen: dict[str, Any]) -> None:
        status = str(seen["OptimizationJobStatus"])
        if status != self._told.get("status"):
            self._told |= {"status": status, "arn": seen["OptimizationJobArn"]}
            event_add(self._job, "sagemaker", status)
        self._told["image"] = seen.get("OptimizationOutput", {}).get("RecommendedInferenceImage", "")
        self._keep(
            phase=status.lower(), percent=_PERCENT.get(status, 0.0), progress_at=timezone.now(),
            log_tail=_lines(seen), attempts=1, host=self._job.target.region if self._job.target else "",
        )  # fmt: skip
        remote_attempt(self._job, seen)
        match status:
            case "COMPLETED":
                self._completed(account, store)
            case "FAILED":
                self._clear(store)
                reason = failure_reason(str(seen.get("FailureReason", "")))
                work_end(self._claim, Status.FAILED, reason, "sagemaker", log=_lines(seen))
            case "STOPPED":
                self._clear(store)
                cancelled = self._job.cancel_asked_at is not None
                text = "cancelled" if cancelled else "somebody stopped it in the account"
                work_end(self._claim, Status.CANCELLED, text, "", log=_lines(seen))
            case "STOPPING":
                self._again("", LOOK_S, status=Status.CANCELLING)
            case _ if self._job.cancel_asked_at is not None:
                account.call("stop_optimization_job", name, OptimizationJobName=name)
                self._again("", LOOK_S, status=Status.CANCELLING)
            case _:
                self._again("", LOOK_S)

    def _completed(self, account: Account, store: Store) -> None:
        uri = str(self._told["request"]["OutputConfig"]["S3OutputLocation"])
        output = output_read(account, uri, beat=self._claim.renew)
        if not output.files:
            work_end(
                self._claim, Status.FAILED, f"SageMaker says that it is done, and nothing lies under {uri}:"
                " allow its role s3:PutObject there, and ask again", "sagemaker",
            )  # fmt: skip
            return
        if not remote_keep(self._claim, output, self._told):
            folder_remove(store, uri)
        Uploads(self._job, self._options, store, beat=self._claim.renew).clear()

    def _clear(self, store: Store) -> None:
        """What a job that failed has left, and what was put there for it."""
        folder_remove(store, str(self._told["request"]["OutputConfig"]["S3OutputLocation"]))
        Uploads(self._job, self._options, store, beat=self._claim.renew).clear()

    def _refused(self, error: ProvisioningError) -> None:
        asked_at = self._job.cancel_asked_at
        if asked_at is not None and timezone.now() - asked_at > GIVE_UP:
            text = f"cancelled, and {self._told.get('name', 'the job')} may run on in the account: {error}"
            work_end(self._claim, Status.CANCELLED, text, "sagemaker")
        elif error.passing or (self._asked and self._told.get("status")):
            # What SageMaker works on is not over because it cannot be seen.
            self._again(str(error), max(error.wait, _TROUBLE_S if not error.passing else LOOK_S))
        else:
            work_end(self._claim, Status.FAILED, str(error), "sagemaker")

    def _again(self, reason: str, seconds: float, *, status: Status = Status.RUNNING) -> None:
        if self._job.cancel_asked_at is not None:
            status = Status.CANCELLING
        self._claim.release(
            status=status, reason=reason[:4000], next_at=timezone.now() + dt.timedelta(seconds=seconds)
        )

    def _keep(self, **values: Any) -> None:
        self._claim.write(remote={**self._job.remote, "told": self._told}, **values)


def _lines(seen: dict[str, Any]) -> str:
    """A job's own words, for people."""
    told = [
        f"{label} {seen[key]:%Y-%m-%d %H:%M:%S %Z}" if isinstance(seen[key], dt.datetime) else str(seen[key])
        for label, key in (
            ("created", "CreationTime"), ("started", "OptimizationStartTime"),
            ("ended", "OptimizationEndTime"), ("", "FailureReason"),
        )
        if seen.get(key)
    ]  # fmt: skip
    return "\n".join((f"{seen['OptimizationJobName']} {seen['OptimizationJobStatus']}", *told))
