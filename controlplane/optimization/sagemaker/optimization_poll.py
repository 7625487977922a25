"""One poll of a SageMaker optimization job: create, observe, stop, and register its result as a variant."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from django.utils import timezone

from contracts.recipes.recipe import OWN_DRAFT, Recipe
from controlplane.deployments.containers.channels import DRAFT_CHANNEL
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.errors import failure_reason
from controlplane.errors import InvalidInputError
from controlplane.optimization.checkpoints import checkpoint_check
from controlplane.optimization.claims import Claim, ClaimLostError
from controlplane.optimization.events import event_add
from controlplane.optimization.models import OptimizationJob, Status
from controlplane.optimization.outputs import folder_remove, output_read
from controlplane.optimization.sagemaker.job_poll import POLL_S, JobPoll
from controlplane.optimization.sagemaker.keeping import remote_attempt, remote_keep, remote_serve
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.sagemaker.request import configs, create_request, remote_name
from controlplane.optimization.sagemaker.sources import Uploads

logger = logging.getLogger(__name__)
_PERCENT: Final = {"": 0.0, "STARTING": 2.0, "INPROGRESS": 10.0, "STOPPING": 10.0, "COMPLETED": 90.0}
"""Progress by status, the only progress that SageMaker reports."""


def optimization_poll(*, pk: int) -> None:
    """Poll one SageMaker job; do nothing if another process holds it."""
    claim = Claim.take(kind=OptimizationJob.KIND, pk=pk)
    if claim is None:
        return
    try:
        OptimizationPoll(claim).run()
    except ClaimLostError:
        logger.warning("optimization %s: another process has taken over", pk)


class OptimizationPoll(JobPoll[OptimizationJob]):
    """One poll of the job under `claim`."""

    MADE_WITHIN: ClassVar = dt.timedelta(hours=12)
    """A large checkpoint is copied into the account first."""

    def __init__(self, claim: Claim) -> None:
        row = claim.row()
        if not isinstance(row, OptimizationJob):
            raise TypeError(f"{row._meta.label} is nothing that SageMaker does")
        super().__init__(claim, row)

    def _go_on(self, account: Account, target: Target, store: Store) -> None:
        if not self._remote:
            if self._row.cancel_asked_at is not None:
                self._end(Status.CANCELLED, "cancelled", "")
                return
            self._prepare(account, target, store)
            if self._over:
                return
        name = self._remote["name"]
        described = account.find("describe_optimization_job", name, OptimizationJobName=name)
        if described is None:
            if self._absent():
                return
            # Just prepared, or its process died between the row and the call. Renew the lease before the
            # create: another process may have cancelled the job since.
            self._claim.write()
            account.make("create_optimization_job", name, **self._remote["request"])
            event_add(self._row, "submitted", f"{name} to {target.name}")
            described = account.find("describe_optimization_job", name, OptimizationJobName=name)
        if described is None:
            self._again("", POLL_S)
        else:
            self._status(account, target, name, described)

    def _prepare(self, account: Account, target: Target, store: Store) -> None:
        """Write the row before creating the job, so that every job in the account is known.

        A recipe that only changes how the model is served ends here, with a variant.
        """
        job = self._row
        checkpoint_check(job)
        options, uploads = RemoteOptions.read(job.remote["options"]), Uploads(job, store)
        container = self._container(account, options)
        recipe, told = Recipe.from_dict(job.recipe), {}
        if recipe.speculation.draft_model == OWN_DRAFT:
            told = _draft_model(container, options)
        if not configs(recipe, options, region=target.region, max_model_len=0, training=""):
            source = _source(container) or options.weights or job.base_model.source
            remote_serve(self._claim, source, told)
            self._over = True
            return
        name = remote_name(job, target)
        self._claim.write(phase="uploading", percent=1.0, started_at=job.started_at or timezone.now())
        weights = uploads.weights(options, heartbeat=self._claim.renew)
        request = create_request(
            job,
            target,
            options,
            weights=weights,
            training=uploads.training(),
            output=store.url(f"optimized/{name}/"),
        )
        self._remote = {"name": name, "request": request, **told}
        self._keep()

    def _container(self, account: Account, options: RemoteOptions) -> Mapping[str, Any]:
        """Return the container of the SageMaker model that the options name; empty if they name none."""
        if not options.model:
            return {}
        described = account.find("describe_model", options.model, ModelName=options.model)
        if described is None:
            raise InvalidInputError(
                f"SageMaker model {options.model} does not exist in {self._row.target}", field="sagemaker"
            )
        container: Mapping[str, Any] = described.get("PrimaryContainer", {})
        return container

    def _status(self, account: Account, target: Target, name: str, described: dict[str, Any]) -> None:
        status = str(described["OptimizationJobStatus"])
        if status != self._remote.get("status"):
            self._remote |= {"status": status, "arn": described["OptimizationJobArn"]}
            event_add(self._row, "sagemaker", status)
        self._remote["image"] = described.get("OptimizationOutput", {}).get("RecommendedInferenceImage", "")
        self._keep(
            phase=status.lower(),
            percent=_PERCENT.get(status, 0.0),
            progress_at=timezone.now(),
            log_tail=_lines(described),
            attempts=1,
            host=target.region,
        )
        remote_attempt(self._row, described)
        match status:
            case "COMPLETED":
                self._completed(account)
            case "FAILED":
                reason = failure_reason(str(described.get("FailureReason", "")))
                self._end(Status.FAILED, reason, "sagemaker", log=_lines(described))
            case "STOPPED":
                cancelled = self._row.cancel_asked_at is not None
                text = "cancelled" if cancelled else "the job was stopped in the account"
                self._end(Status.CANCELLED, text, "", log=_lines(described))
            case "STOPPING":
                self._again("", POLL_S, status=Status.CANCELLING)
            case _ if self._row.cancel_asked_at is not None:
                account.call("stop_optimization_job", name, OptimizationJobName=name)
                self._again("", POLL_S, status=Status.CANCELLING)
            case _:
                self._again("", POLL_S)

    def _completed(self, account: Account) -> None:
        uri = str(self._remote["request"]["OutputConfig"]["S3OutputLocation"])
        output = output_read(account, uri, heartbeat=self._claim.renew)
        if not output.files:
            self._end(
                Status.FAILED,
                f"SageMaker completed the job without output under {uri}:"
                " allow its role s3:PutObject there, and request the job again",
                "sagemaker",
            )
            return
        self._output_stays = remote_keep(self._claim, output, self._remote)
        self._over = True

    def _clear(self, account: Account, target: Target, store: Store) -> None:
        if self._remote and not self._output_stays:
            folder_remove(store, str(self._remote["request"]["OutputConfig"]["S3OutputLocation"]))
        Uploads(self._row, store).clear()


def _source(container: Mapping[str, Any]) -> str:
    """Return the s3:// location of a container's model data."""
    source = container.get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
    return str(source or container.get("ModelDataUrl", ""))


def _draft_model(container: Mapping[str, Any], options: RemoteOptions) -> dict[str, Any]:
    """Return the s3:// location of the draft model that JumpStart added, and if its license is accepted."""
    data = container.get("ModelDataSource", {}).get("S3DataSource", {})
    for source in container.get("AdditionalModelDataSources", ()):
        if source["ChannelName"].startswith(DRAFT_CHANNEL):
            draft = source["S3DataSource"]
            accepted = any(item.get("ModelAccessConfig", {}).get("AcceptEula") for item in (data, draft))
            return {"draft_model": str(draft["S3Uri"])} | ({"accept_eula": True} if accepted else {})
    raise InvalidInputError(
        f"SageMaker model {options.model} has no draft model among its additional data sources: create it"
        " with JumpStart's configuration for speculative decoding, or name a draft model of your own",
        field="sagemaker",
    )


def _lines(job: dict[str, Any]) -> str:
    """Format SageMaker's description of a job as log lines."""
    lines = [
        f"{label} {job[key]:%Y-%m-%d %H:%M:%S %Z}" if isinstance(job[key], dt.datetime) else str(job[key])
        for label, key in (
            ("created", "CreationTime"),
            ("started", "OptimizationStartTime"),
            ("ended", "OptimizationEndTime"),
            ("", "FailureReason"),
        )
        if job.get(key)
    ]
    return "\n".join((f"{job['OptimizationJobName']} {job['OptimizationJobStatus']}", *lines))
