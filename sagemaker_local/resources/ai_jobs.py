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

from sagemaker_local.aws_errors import ResourceNotFound
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
        if self._kind is RECOMMENDATION:
            job.output = {"Recommendations": _recommended(job)}
        try:
            await asyncio.to_thread(_write, self._s3, job)
        except (ClientError, BotoCoreError) as error:
            self._region.touch(job, "Failed", f"The output location cannot be written: {error}")
            return
        self._region.touch(job, "Completed")


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
    return [
        {
            "RecommendationDescription": f"{kind}, as it was asked about; nothing was measured",
            "DeploymentConfiguration": {"InstanceType": kind, "InstanceCount": 1, "CopyCountPerInstance": 1},
        }
        for kind in types
    ]
