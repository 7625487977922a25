"""AI workload configurations, benchmark jobs and recommendation jobs: states and records.

Nothing is measured: a completed benchmark writes its request to the output location, and a recommendation
repeats the requested instance types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ResourceInUse, ResourceNotFound, ValidationException
from sagemaker_local.resources.listing import page
from sagemaker_local.resources.records import JobRecord, Record
from sagemaker_local.resources.store import Region, is_taken, tags

R = TypeVar("R", bound=Record)
_ENDED: Final = frozenset({"Completed", "Failed", "Stopped"})
_ANYWHERE: Final = "ml.g5.12xlarge"
"""The recommended instance type if the request names none."""


class WorkloadConfigs:
    """CreateAIWorkloadConfig and related operations."""

    def __init__(self, region: Region) -> None:
        self._region, self._configs = region, region.store.workloads

    @property
    def operations(self) -> dict[str, Handler]:
        return {
            "CreateAIWorkloadConfig": self.create,
            "DescribeAIWorkloadConfig": self.describe,
            "ListAIWorkloadConfigs": self.list_all,
            "DeleteAIWorkloadConfig": self.delete,
        }

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["AIWorkloadConfigName"]
        arn = self._region.arn("ai-workload-config", name)
        if is_taken(self._configs, arn):
            raise ResourceInUse(f"AI workload config {name} already exists.")
        now, given = self._region.clock.now(), tags(request)
        self._configs[name] = Record(name, arn, request, now, now, tags=given)
        self._region.changed()
        return {"AIWorkloadConfigArn": arn}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        record = _require(self._configs, request["AIWorkloadConfigName"], "AI workload config")
        return {**record.spec, "AIWorkloadConfigArn": record.arn, "CreationTime": record.created}

    async def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        records, more = page(self._configs.values(), request)
        shown = [
            {"AIWorkloadConfigName": item.name, "AIWorkloadConfigArn": item.arn, "CreationTime": item.created}
            for item in records
        ]
        return {"AIWorkloadConfigs": shown, **more}

    async def delete(self, request: dict[str, Any]) -> dict[str, Any]:
        record = _require(self._configs, request["AIWorkloadConfigName"], "AI workload config")
        del self._configs[record.name]
        self._region.changed()
        return {"AIWorkloadConfigArn": record.arn}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Names of one kind of job: `noun` as in AIBenchmarkJobName, `path` as in its ARN."""

    noun: str
    path: str
    plural: str


BENCHMARK: Final = _Kind("AIBenchmarkJob", "ai-benchmark-job", "AIBenchmarkJobs")
RECOMMENDATION: Final = _Kind("AIRecommendationJob", "ai-recommendation-job", "AIRecommendationJobs")


class AIJobs:
    """Jobs of one kind: InProgress, then Completed or Failed; Stopping, Stopped."""

    def __init__(self, region: Region, kind: _Kind, s3: Callable[[], Any]) -> None:
        """`s3` creates a boto3 client; it is called in a thread."""
        self._region, self._kind, self._s3 = region, kind, s3
        store = region.store
        self._jobs = store.benchmarks if kind is BENCHMARK else store.recommendations
        self._lives: dict[str, asyncio.Task[None]] = {}

    @property
    def operations(self) -> dict[str, Handler]:
        noun = self._kind.noun
        return {
            f"Create{noun}": self.create,
            f"Describe{noun}": self.describe,
            f"List{self._kind.plural}": self.list_all,
            f"Stop{noun}": self.stop,
            f"Delete{noun}": self.delete,
        }

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request[f"{self._kind.noun}Name"]
        arn = self._region.arn(self._kind.path, name)
        if is_taken(self._jobs, arn):
            raise ResourceInUse(f"{self._kind.noun} {name} already exists.")
        workload = request["AIWorkloadConfigIdentifier"].rpartition("/")[2]
        _require(self._region.store.workloads, workload, "AI workload config")
        target = request.get("BenchmarkTarget", {}).get("Endpoint", {}).get("Identifier", "")
        if target and target.rpartition("/")[2] not in self._region.store.endpoints:
            raise ResourceNotFound(f"Could not find endpoint {target}.")
        now, given = self._region.clock.now(), tags(request)
        job = self._jobs[name] = JobRecord(name, arn, request, now, now, "InProgress", tags=given)
        job.started = now
        self._region.changed()
        self._lives[name] = self._region.spawn(self._run(job))
        return {f"{self._kind.noun}Arn": arn}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        job, noun = self._get(request), self._kind.noun
        shown = {
            **job.spec,
            f"{noun}Arn": job.arn,
            f"{noun}Status": job.status,
            "CreationTime": job.created,
            **_times(job),
            **job.output,
        }
        return shown | ({"FailureReason": job.failure} if job.failure else {})

    async def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        records, more = page(self._jobs.values(), request)
        noun = self._kind.noun
        shown = [
            {
                f"{noun}Name": job.name,
                f"{noun}Arn": job.arn,
                f"{noun}Status": job.status,
                "CreationTime": job.created,
                **({} if job.ended is None else {"EndTime": job.ended}),
            }
            for job in records
        ]
        return {self._kind.plural: shown, **more}

    async def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._get(request)
        if job.status in _ENDED or job.status == "Stopping":
            raise ValidationException(f"{self._kind.noun} {job.name} is {job.status} and cannot be stopped.")
        self._lives[job.name].cancel()
        self._region.touch(job, "Stopping")
        self._lives[job.name] = self._region.spawn(self._stopped(job))
        return {f"{self._kind.noun}Arn": job.arn}

    async def delete(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._get(request)
        if job.status not in _ENDED:
            raise ValidationException(f"{self._kind.noun} {job.name} is {job.status}: stop it first.")
        del self._jobs[job.name]
        self._region.changed()
        return {f"{self._kind.noun}Arn": job.arn}

    def revive(self) -> None:
        """Resume the jobs that were running when the server ended."""
        for job in self._jobs.values():
            if job.status not in _ENDED:
                self._lives[job.name] = self._region.spawn(self._run(job))

    def _get(self, request: dict[str, Any]) -> JobRecord:
        return _require(self._jobs, request[f"{self._kind.noun}Name"], self._kind.noun)

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

    async def _stopped(self, job: JobRecord) -> None:
        await self._region.clock.sleep(self._region.config.durations.deleting)
        job.ended = self._region.clock.now()
        self._region.touch(job, "Stopped")


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


def _require(records: Mapping[str, R], name: str, what: str) -> R:
    """Return the record. Raises ResourceNotFound."""
    if (record := records.get(name)) is None:
        raise ResourceNotFound(f"Could not find {what} {name}.")
    return record


def _times(job: JobRecord) -> dict[str, float]:
    times = {"StartTime": job.started, "EndTime": job.ended}
    return {name: moment for name, moment in times.items() if moment is not None}
