"""One poll of a SageMaker benchmark or recommendation job: create, observe, stop, store its result."""

from __future__ import annotations

import datetime as dt
import io
import logging
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from django.utils import timezone

from contracts.adapters.reference import ADAPTER_FILES, AdapterRef
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store, adapter_file_put
from controlplane.deployments.provisioners.sagemaker.errors import failure_reason
from controlplane.optimization.claims import Claim, ClaimLostError
from controlplane.optimization.database_text import storable
from controlplane.optimization.events import event_add
from controlplane.optimization.models import Assessment, Status
from controlplane.optimization.outputs import folder_remove
from controlplane.optimization.prompt_sets import prompts_read
from controlplane.optimization.sagemaker.assessment_request import assessment_request, workload_request
from controlplane.optimization.sagemaker.job_poll import POLL_S, JobPoll

logger = logging.getLogger(__name__)
_PERCENT: Final = {"InProgress": 10.0, "Stopping": 10.0, "Completed": 100.0}
"""Progress by status, the only progress that SageMaker reports."""


@dataclass(frozen=True, slots=True)
class _Words:
    """Names in SageMaker's API of one subject: `ai_benchmark_job`, `AIBenchmarkJob`."""

    call: str
    noun: str


_WORDS: Final = {
    Assessment.Subject.BENCHMARK: _Words("ai_benchmark_job", "AIBenchmarkJob"),
    Assessment.Subject.RECOMMENDATION: _Words("ai_recommendation_job", "AIRecommendationJob"),
}


def assessment_poll(*, pk: int) -> None:
    """Poll one assessment; do nothing if another process holds it."""
    claim = Claim.take(kind=Assessment.KIND, pk=pk)
    if claim is None:
        return
    try:
        AssessmentPoll(claim).run()
    except ClaimLostError:
        logger.warning("assessment %s: another process has taken over", pk)


class AssessmentPoll(JobPoll[Assessment]):
    """One poll of the assessment under `claim`."""

    MADE_WITHIN: ClassVar = dt.timedelta(hours=1)

    def __init__(self, claim: Claim) -> None:
        row = claim.row()
        if not isinstance(row, Assessment):
            raise TypeError(f"{row._meta.label} is not an assessment")
        super().__init__(claim, row)
        self._words = _WORDS[Assessment.Subject(row.subject)]

    def _go_on(self, account: Account, target: Target, store: Store) -> None:
        if not self._remote:
            if self._row.cancel_asked_at is not None:
                self._end(Status.CANCELLED, "cancelled", "")
                return
            self._prepare(target, store)
        name, words = self._remote["name"], self._words
        found = account.find(f"describe_{words.call}", name, **{f"{words.noun}Name": name})
        if found is not None:
            self._status(account, target, store, found)
        elif not self._absent():
            # Renew the lease before each create: another process may have cancelled the job since.
            self._claim.write()
            account.make("create_ai_workload_config", name, **self._remote["workload"])
            self._claim.write()
            account.make(f"create_{words.call}", name, **self._remote["request"])
            self._again("", POLL_S)

    def _prepare(self, target: Target, store: Store) -> None:
        """Write the row before creating the job, so that every job in the account is known."""
        row, name, data = self._row, self._name(target), ""
        self._claim.write(phase="uploading", started_at=row.started_at or timezone.now())
        if row.prompts is not None:
            key = f"assessments/{name}/prompts/prompts.jsonl"
            store.put(key, io.BytesIO(prompts_read(prompts=row.prompts)))
            data = store.url(f"assessments/{name}/prompts/")
        adapters = self._upload_adapters(store, f"assessments/{name}/adapters")
        output = store.url(f"assessed/{name}/")
        self._remote = {
            "name": name,
            "workload": workload_request(row, target, name, data=data),
            "request": assessment_request(row, target, name, output=output, adapters=adapters),
        }
        self._keep()

    def _upload_adapters(self, store: Store, folder: str) -> dict[str, str]:
        """Copy the adapters' files into the target's store, and return each adapter's s3:// folder by id.

        SageMaker's role reads that store, and not the artifact store, which may be a folder of a host.
        """
        found = {}
        for item in self._row.remote["options"].get("adapters", ()):
            if "sha256" not in item:
                continue
            ref = AdapterRef(item["engine_name"], "", item["sha256"], 1)
            for file in ADAPTER_FILES:
                adapter_file_put(store, ref, file, f"{folder}/{item['id']}/{file}")
            found[item["id"]] = store.url(f"{folder}/{item['id']}/")
        return found

    def _name(self, target: Target) -> str:
        return self._remote.get("name") or f"gw-{target.owner or 'x'}-{self._row.subject}-{self._row.pk}"

    def _status(self, account: Account, target: Target, store: Store, described: dict[str, Any]) -> None:
        name, words = self._remote["name"], self._words
        status = str(described[f"{words.noun}Status"])
        if status != self._remote.get("status"):
            self._remote["status"] = status
            event_add(self._row, "sagemaker", status)
        self._keep(
            phase=status.lower(),
            percent=_PERCENT.get(status, 0.0),
            progress_at=timezone.now(),
            attempts=1,
            host=target.region,
            started_at=described.get("StartTime") or self._row.started_at,
        )
        if status in ("Completed", "Failed", "Stopped"):
            self._ended(store, status, described)
            return
        if status != "Stopping" and self._row.cancel_asked_at is not None:
            account.call(f"stop_{words.call}", name, **{f"{words.noun}Name": name})
        self._again("", POLL_S)

    def _ended(self, store: Store, status: str, described: dict[str, Any]) -> None:
        if status == "Failed":
            self._end(Status.FAILED, failure_reason(str(described.get("FailureReason", ""))), "sagemaker")
        elif status == "Stopped":
            cancelled = self._row.cancel_asked_at is not None
            self._end(
                Status.CANCELLED, "cancelled" if cancelled else "the job was stopped in the account", ""
            )
        else:
            folder = f"assessed/{self._remote['name']}"
            result = {
                "recommendations": described.get("Recommendations", []),
                "output": store.url(f"{folder}/"),
                "files": sorted(key.removeprefix(f"{folder}/") for key in store.keys(folder)),
            }
            self._end(Status.DONE, "", "", percent=100.0, result=storable(result))

    def _clear(self, account: Account, target: Target, store: Store) -> None:
        name = self._name(target)
        folder_remove(store, store.url(f"assessments/{name}/"))
        account.take_away("delete_ai_workload_config", name, AIWorkloadConfigName=name)
