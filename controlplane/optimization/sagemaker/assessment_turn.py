"""One look at a benchmark or a recommendation that SageMaker does: asked for, seen, stopped, kept."""

from __future__ import annotations

import datetime as dt
import io
import logging
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from django.utils import timezone

from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.errors import failure_reason
from controlplane.errors import ControlPlaneError
from controlplane.optimization.claims import Claim, ClaimLostError
from controlplane.optimization.database_text import storable
from controlplane.optimization.endings import work_end
from controlplane.optimization.events import event_add
from controlplane.optimization.models import Assessment, Status
from controlplane.optimization.prompt_sets import prompts_read
from controlplane.optimization.sagemaker.assessment_request import assessment_request, workload_request
from controlplane.optimization.sagemaker.outputs import folder_remove
from controlplane.optimization.sagemaker.turn import GIVE_UP, LOOK_S

logger = logging.getLogger(__name__)
_TROUBLE_S: Final = 60.0
_PERCENT: Final = {"InProgress": 10.0, "Stopping": 10.0, "Completed": 100.0}
"""SageMaker tells no more than a status."""


@dataclass(frozen=True, slots=True)
class _Words:
    """Of SageMaker's calls for one subject: `ai_benchmark_job`, `AIBenchmarkJob`."""

    call: str
    noun: str


_WORDS: Final = {
    Assessment.Subject.BENCHMARK: _Words("ai_benchmark_job", "AIBenchmarkJob"),
    Assessment.Subject.RECOMMENDATION: _Words("ai_recommendation_job", "AIRecommendationJob"),
}


def assessment_turn(*, pk: int) -> None:
    """Brings one a look further; nothing where another process is at it."""
    claim = Claim.take(kind=Assessment.KIND, pk=pk)
    if claim is None:
        return
    try:
        AssessmentTurn(claim).run()
    except ClaimLostError:
        logger.warning("assessment %s: another process has taken over", pk)


class AssessmentTurn:
    """The turn that `claim` is for."""

    def __init__(self, claim: Claim) -> None:
        row = claim.row()
        if not isinstance(row, Assessment):
            raise TypeError(f"{row._meta.label} is no assessment")
        self._claim, self._row = claim, row
        self._told: dict[str, Any] = dict(row.remote.get("told", {}))
        self._words = _WORDS[Assessment.Subject(row.subject)]

    def run(self) -> None:
        """Ends with the row in a state that says what is so, and the lease given back."""
        target = self._row.target
        if target is None:
            work_end(self._claim, Status.FAILED, "its target was removed", "sagemaker")
            return
        try:
            with closing(Account.of(target)) as account:
                self._look(account, target, Store(account, target, beat=self._claim.renew))
        except ProvisioningError as error:
            self._refused(error)
        except ControlPlaneError as error:
            if self._told:
                self._again(str(error), _TROUBLE_S)
            else:
                work_end(self._claim, Status.FAILED, str(error), "source")

    def _look(self, account: Account, target: Target, store: Store) -> None:
        if not self._told:
            if self._row.cancel_asked_at is not None:
                work_end(self._claim, Status.CANCELLED, "cancelled", "")
                return
            self._prepare(target, store)
        name, words = self._told["name"], self._words
        named = {f"{words.noun}Name": name}
        seen = account.find(f"describe_{words.call}", name, **named)
        if seen is None and self._row.cancel_asked_at is not None:
            work_end(self._claim, Status.CANCELLED, "cancelled", "")
            return
        if seen is None:
            account.make("create_ai_workload_config", name, **self._told["workload"])
            account.make(f"create_{words.call}", name, **self._told["request"])
            self._again("", LOOK_S)
            return
        status = str(seen[f"{words.noun}Status"])
        if status != self._told.get("status"):
            self._told["status"] = status
            event_add(self._row, "sagemaker", status)
        self._keep(
            phase=status.lower(), percent=_PERCENT.get(status, 0.0), progress_at=timezone.now(), attempts=1,
            host=target.region, started_at=seen.get("StartTime") or self._row.started_at,
        )  # fmt: skip
        if status in ("Completed", "Failed", "Stopped"):
            self._ended(account, store, status, seen)
        elif status == "Stopping" or self._row.cancel_asked_at is None:
            self._again("", LOOK_S)
        else:
            account.call(f"stop_{words.call}", name, **named)
            self._again("", LOOK_S)

    def _prepare(self, target: Target, store: Store) -> None:
        """The row first: a job that is in the account is always known."""
        row, name = self._row, f"gw-{target.owner or 'x'}-{self._row.subject}-{self._row.pk}"
        data = ""
        if row.prompts is not None:
            key = f"assessments/{name}/prompts.jsonl"
            store.put(key, io.BytesIO(prompts_read(prompts=row.prompts)))
            data = store.url(f"assessments/{name}/")
        self._told = {
            "name": name, "workload": workload_request(row, target, name, data=data),
            "request": assessment_request(row, target, name, output=store.url(f"assessed/{name}/")),
        }  # fmt: skip
        self._keep()

    def _ended(self, account: Account, store: Store, status: str, seen: dict[str, Any]) -> None:
        name = self._told["name"]
        folder_remove(store, store.url(f"assessments/{name}/"))
        account.take_away("delete_ai_workload_config", name, AIWorkloadConfigName=name)
        if status == "Failed":
            reason = failure_reason(str(seen.get("FailureReason", "")))
            work_end(self._claim, Status.FAILED, reason, "sagemaker")
        elif status == "Stopped":
            asked = self._row.cancel_asked_at is not None
            text = "cancelled" if asked else "somebody stopped it in the account"
            work_end(self._claim, Status.CANCELLED, text, "")
        else:
            folder = f"assessed/{name}"
            result = {
                "recommendations": seen.get("Recommendations", []), "output": store.url(f"{folder}/"),
                "files": sorted(key.removeprefix(f"{folder}/") for key in store.keys(folder)),
            }  # fmt: skip
            work_end(self._claim, Status.DONE, "", "", percent=100.0, result=storable(result))

    def _refused(self, error: ProvisioningError) -> None:
        asked_at = self._row.cancel_asked_at
        if asked_at is not None and timezone.now() - asked_at > GIVE_UP:
            text = f"cancelled, and {self._told.get('name', 'the job')} may run on in the account: {error}"
            work_end(self._claim, Status.CANCELLED, text, "sagemaker")
        elif error.passing or self._told.get("status"):
            self._again(str(error), LOOK_S if error.passing else _TROUBLE_S)
        else:
            work_end(self._claim, Status.FAILED, str(error), "sagemaker")

    def _again(self, reason: str, seconds: float) -> None:
        cancelling = self._row.cancel_asked_at is not None
        self._claim.release(
            status=Status.CANCELLING if cancelling else Status.RUNNING, reason=reason[:4000],
            next_at=timezone.now() + dt.timedelta(seconds=seconds),
        )  # fmt: skip

    def _keep(self, **values: Any) -> None:
        self._claim.write(remote={**self._row.remote, "told": self._told}, **values)
