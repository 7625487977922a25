"""Ends of SageMaker's jobs: whatever fails, the work ends, and nothing stays in the account."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.optimization.models import Attempt, OptimizationJob
from controlplane.optimization.sagemaker.job_poll import READ_WITHIN
from controlplane.optimization.sagemaker.keeping import remote_attempt
from controlplane.optimization.services import work_cancel
from tests.controlplane.deployments.conftest import aws_models_are_parsed_once  # noqa: F401
from tests.controlplane.optimization.sagemaker_jobs import advance, create_job, keys, until
from tests.sagemaker_local.stand import BUCKET, Stand
from tests.waiting import eventually

pytestmark = [pytest.mark.django_db, pytest.mark.costly("jobs at the local SageMaker")]
DENIED: dict[str, Any] = {
    "kind": "refusal",
    "count": 1,
    "code": "AccessDeniedException",
    "message": "not authorized to perform",
    "status": 400,
}


def test_one_that_was_removed_in_the_account_is_not_made_and_paid_for_again(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    job = advance(create_job(tiny_base))
    sagemaker, name = stand.client("sagemaker"), job.remote["told"]["name"]
    sagemaker.stop_optimization_job(OptimizationJobName=name)
    stopped(stand, name)
    sagemaker.delete_optimization_job(OptimizationJobName=name)
    assert advance(job).status == "failed"
    assert "was removed in the account" in job.reason
    assert copies(stand, target) == []


def stopped(stand: Stand, name: str, status: str = "STOPPED") -> None:
    describe = stand.client("sagemaker").describe_optimization_job
    eventually(lambda: describe(OptimizationJobName=name)["OptimizationJobStatus"] == status)


def copies(stand: Stand, target: Target) -> list[str]:
    """Return the files that the control plane, not SageMaker, put into the target's store for jobs."""
    return [key for key in keys(stand) if f"{target.owner}/optimization-" in key]


def test_copies_go_after_a_refusal_and_after_a_cancel_before_sagemaker_has_it(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    stand.put("faults", [DENIED | {"operation": "CreateOptimizationJob"}])
    assert advance(create_job(tiny_base)).status == "failed"
    assert copies(stand, target) == []
    stand.put("faults", [{"kind": "unavailable", "operation": "CreateOptimizationJob", "count": 1}])
    job = advance(create_job(tiny_base))
    assert (job.status, bool(copies(stand, target))) == ("running", True)
    OptimizationJob.objects.update(remote={"options": job.remote["options"]})
    job.refresh_from_db()
    assert work_cancel(work=job).status == "cancelling", "a look is to remove the copies"
    assert advance(job).status == "cancelled"
    assert copies(stand, target) == []


def test_an_account_that_lets_nothing_be_removed_keeps_no_job_open(
    stand: Stand, target: Target, tiny_base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(store: Store, keys: object) -> None:
        raise ProvisioningError("allow s3:DeleteObject")

    job = advance(create_job(tiny_base))
    monkeypatch.setattr(Store, "remove", denied)
    work_cancel(work=job)
    until(job, "cancelled")
    assert job.events.filter(event="left", detail__contains="allow s3:DeleteObject").count() == 1


def test_a_checkpoint_that_was_read_anew_since_is_not_optimized(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    job = create_job(tiny_base)
    BaseModel.objects.update(checkpoint_sha256="0" * 64)
    assert advance(job).status == "failed"
    assert (job.error_code, "is another" in job.reason) == ("source", True)
    assert copies(stand, target) == []


def test_every_end_ends_the_attempt(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    """SageMaker may omit the end time, and the end of an abandoned job is never observed."""
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/x/"))
    began = timezone.now() - timedelta(hours=2)
    seen = {
        "OptimizationJobName": "n",
        "OptimizationJobStatus": "INPROGRESS",
        "OptimizationStartTime": began,
        "DeploymentInstanceType": "ml.g5.12xlarge",
        "LastModifiedTime": began + timedelta(hours=1),
    }
    remote_attempt(job, seen)
    assert Attempt.objects.get().ended_at is None
    remote_attempt(job, seen | {"OptimizationJobStatus": "COMPLETED"})
    assert Attempt.objects.get().ended_at == began + timedelta(hours=1)
    Attempt.objects.update(ended_at=None, seen_at=began + timedelta(minutes=5))
    OptimizationJob.objects.update(target=None)
    assert advance(job).status == "failed"
    assert Attempt.objects.get().ended_at == began + timedelta(minutes=5)


def test_who_has_lost_the_lease_makes_nothing(
    stand: Stand, target: Target, tiny_base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = create_job(tiny_base, weights=f"s3://{BUCKET}/x/")
    find = Account.find

    def late(account: Account, *args: Any, **more: Any) -> Any:
        OptimizationJob.objects.update(lease_owner="another")
        return find(account, *args, **more)

    monkeypatch.setattr(Account, "find", late)
    name = advance(job).remote["told"]["name"]
    listed = stand.client("sagemaker").list_optimization_jobs()["OptimizationJobSummaries"]
    assert name not in {item["OptimizationJobName"] for item in listed}


def test_what_sagemaker_never_takes_ends(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    fault = {"kind": "unavailable", "operation": "CreateOptimizationJob", "count": 2}
    stand.put("faults", [fault])
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/x/"))
    assert job.status == "running"
    OptimizationJob.objects.update(created_at=timezone.now() - timedelta(hours=13))
    assert advance(job).status == "failed"
    assert "has not accepted the job within 12 h" in job.reason
    lost = create_job(tiny_base, weights=f"s3://{BUCKET}/y/")
    OptimizationJob.objects.filter(pk=lost.pk).update(lost_attempts=3)
    assert advance(lost).status == "failed"
    assert "vanished 3 times" in lost.reason


def test_options_that_would_not_be_taken_today_are_followed_to_their_end(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    unasked = create_job(tiny_base, weights=f"s3://{BUCKET}/y/")
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/x/"))
    options = job.remote["options"] | {"environment": {"HF_TOKEN": "x"}}
    for row in (job, unasked):
        OptimizationJob.objects.filter(pk=row.pk).update(remote={**row.remote, "options": options})
    assert advance(job).status == "running"
    assert advance(unasked).status == "failed"
    assert "HF_TOKEN" in unasked.reason


def archived(stand: Stand, target: Target, base: BaseModel) -> tuple[OptimizationJob, str]:
    """A job that SageMaker has done, whose output a lifecycle rule has moved to S3 Glacier; its folder."""
    job = advance(create_job(base))
    stand.advance(11)
    stand.advance(200)
    name = job.remote["told"]["name"]
    stopped(stand, name, "COMPLETED")
    folder = f"graft/{target.owner}/optimized/{name}/"
    moved(stand, folder, "GLACIER")
    return job, folder


def moved(stand: Stand, folder: str, storage: str) -> None:
    s3 = stand.client("s3")
    for key in (found := [key for key in keys(stand) if key.startswith(folder)]):
        s3.delete_object(Bucket=BUCKET, Key=key)
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode(), StorageClass=storage)
    assert found


def test_an_output_that_cannot_be_read_yet_waits_where_everybody_sees_it(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    job, folder = archived(stand, target, tiny_base)
    for _ in range(2):
        assert (advance(job).status, job.phase) == ("running", "unreadable")
        assert "The file is archived (S3 Glacier)" in job.reason
        assert "restore it" in job.reason
    stand.put("faults", [DENIED | {"operation": "s3", "status": 403}])
    assert (advance(job).phase, "lacks the permission" in job.reason) == ("unreadable", True)
    stand.put("faults", [{"kind": "unavailable", "operation": "DescribeOptimizationJob"}])
    assert (advance(job).phase, "an internal error" in job.reason) == ("unreadable", True)
    assert job.next_at > timezone.now() + timedelta(seconds=30), "it is tried again by itself"
    event = job.events.get(event="unreadable")
    assert f"s3://{BUCKET}/{folder}" in event.detail
    moved(stand, folder, "STANDARD")
    assert (advance(job).status, job.phase) == ("done", "completed")
    assert job.variant is not None


def test_an_output_that_stays_unreadable_for_a_day_has_failed_and_stays(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    job, folder = archived(stand, target, tiny_base)
    advance(job)
    told = job.remote["told"]
    began = timezone.now() - READ_WITHIN
    for seconds, status in ((60, "running"), (-60, "failed")):
        told["unreadable_since"] = (began + timedelta(seconds=seconds)).isoformat()
        OptimizationJob.objects.update(remote={**job.remote, "told": told})
        assert advance(job).status == status
    assert (job.error_code, job.variant) == ("unreadable", None)
    assert f"for 24 h, and stays under s3://{BUCKET}/{folder}: The file is archived" in job.reason
    assert [key for key in keys(stand) if key.startswith(folder)]
    assert copies(stand, target) == []
    cancelled, folder = archived(stand, target, tiny_base)
    advance(cancelled)
    work_cancel(work=cancelled)
    assert advance(cancelled).status == "cancelled", "there is nothing to stop"
    assert not [key for key in keys(stand) if key.startswith(folder)]
