"""AI workload configurations, benchmark jobs and recommendation jobs: states and records.

Nothing is measured: a completed benchmark writes its request to the output location, and a recommendation
repeats the requested instance types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_local.aws_errors import ResourceNotFound, ValidationException
from sagemaker_local.resources.collection import Collection, Jobs
from sagemaker_local.resources.records import (
    BENCHMARK,
    RECOMMENDATION,
    WORKLOAD_CONFIG,
    JobRecord,
    Kind,
    Record,
)
from sagemaker_local.resources.store import Region, tags

_ANYWHERE: Final = "ml.g5.12xlarge"
"""The recommended instance type if the request names none."""


class WorkloadConfigs(Collection[Record]):
    """CreateAIWorkloadConfig and related operations."""

    def __init__(self, region: Region) -> None:
        super().__init__(region, WORKLOAD_CONFIG, region.store.workloads)

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name, arn = self._new_name(request)
        now = self._region.clock.now()
        return self._add(Record(name, arn, request, now, now, tags=tags(request)))


class AIJobs(Jobs):
    """Jobs of one kind: InProgress, then Completed or Failed; Stopping, Stopped."""

    ENDED = frozenset({"Completed", "Failed", "Stopped"})
    STOPPING, STOPPED = "Stopping", "Stopped"

    def __init__(self, region: Region, kind: Kind, s3: Callable[[], Any]) -> None:
        """`s3` creates a boto3 client; it is called in a thread."""
        store = region.store
        super().__init__(region, kind, store.benchmarks if kind is BENCHMARK else store.recommendations)
        self._s3 = s3

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name, arn = self._new_name(request)
        workload = request["AIWorkloadConfigIdentifier"].rpartition("/")[2]
        self._region.get(self._region.store.workloads, WORKLOAD_CONFIG, workload)
        target = request.get("BenchmarkTarget", {}).get("Endpoint", {}).get("Identifier", "")
        if target and target.rpartition("/")[2] not in self._region.store.endpoints:
            raise ResourceNotFound(f"Could not find endpoint {target}.")
        ids = [item["AdapterId"] for item in _adapters(request)]
        if repeated := [name for name in ids if ids.count(name) > 1]:
            raise ValidationException(f"AdapterSource names the AdapterId {repeated[0]} more than once.")
        now, given = self._region.clock.now(), tags(request)
        job = JobRecord(name, arn, request, now, now, "InProgress", tags=given, started=now)
        answer = self._add(job)
        self._start(job)
        return answer

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._get(request)
        times = {"StartTime": job.started, "EndTime": job.ended}
        shown = {
            **await super().describe(request),
            f"{self._kind.noun}Status": job.status,
            **{name: moment for name, moment in times.items() if moment is not None},
            **job.output,
        }
        return shown | ({"FailureReason": job.failure} if job.failure else {})

    def _summary(self, record: JobRecord) -> dict[str, Any]:
        shown = super()._summary(record) | {f"{self._kind.noun}Status": record.status}
        return shown | ({} if record.ended is None else {"EndTime": record.ended})

    async def _run(self, job: JobRecord) -> None:
        await self._region.clock.sleep(self._region.config.durations.job)
        job.ended = self._region.clock.now()
        try:
            if missing := await asyncio.to_thread(_missing_adapter, self._s3, job):
                text = f"{missing} has no adapter_config.json: give the directory of a PEFT adapter"
                self._region.touch(job, "Failed", text)
                return
            if self._kind is RECOMMENDATION:
                job.output = {"Recommendations": _recommended(job)}
            await asyncio.to_thread(_write, self._s3, job)
        except (ClientError, BotoCoreError) as error:
            self._region.touch(job, "Failed", f"The output location cannot be written: {error}")
            return
        self._region.touch(job, "Completed")


def _adapters(request: dict[str, Any]) -> list[dict[str, str]]:
    source = request.get("AdapterSource", {})
    return [*source.get("S3Uris", ()), *source.get("ModelPackageArns", ())]


def _missing_adapter(s3: Callable[[], Any], job: JobRecord) -> str:
    """Return the first location without an adapter's configuration; "" if all have one."""
    for item in job.spec.get("AdapterSource", {}).get("S3Uris", ()):
        bucket, _, prefix = item["S3Uri"].removeprefix("s3://").partition("/")
        key = f"{prefix.rstrip('/')}/adapter_config.json"
        found = s3().list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
        if not found.get("Contents"):
            return str(item["S3Uri"])
    return ""


def _write(s3: Callable[[], Any], job: JobRecord) -> None:
    location = str(job.spec["OutputConfig"].get("S3OutputLocation", ""))
    if not location.startswith("s3://"):
        return
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    folder = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
    told = {"job": job.name, "measured": False, "asked": job.spec}
    s3().put_object(Bucket=bucket, Key=f"{folder}{job.name}/output.json", Body=json.dumps(told).encode())


def _recommended(job: JobRecord) -> list[dict[str, Any]]:
    types = job.spec.get("ComputeSpec", {}).get("InstanceTypes") or [_ANYWHERE]
    details = _adapter_details(job)
    return [
        {
            **({"AdapterDetails": details} if details else {}),
            "RecommendationDescription": f"{kind}, as it was asked about; nothing was measured",
            "DeploymentConfiguration": {"InstanceType": kind, "InstanceCount": 1, "CopyCountPerInstance": 1},
        }
        for kind in types
    ]


def _adapter_details(job: JobRecord) -> dict[str, Any]:
    """Return each adapter in both forms, as SageMaker registers a model package for a location in S3."""
    if not (source := job.spec.get("AdapterSource")):
        return {}
    head = job.arn.rpartition(":")[0]
    packages = [
        {
            "AdapterId": item["AdapterId"],
            "ModelPackageArn": item.get("ModelPackageArn", f"{head}:model-package/{item['AdapterId']}/1"),
        }
        for item in _adapters(job.spec)
    ]
    located = source.get("S3Uris") or [
        {"AdapterId": item["AdapterId"], "S3Uri": f"s3://packages/{item['AdapterId']}/"} for item in packages
    ]
    return {"ModelPackageArns": packages, "S3Uris": located}
