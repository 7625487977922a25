"""Optimization jobs: states and records, and a result that is an unchanged copy of the source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ResourceInUse, ValidationException
from sagemaker_local.copies.artifacts import copy_prefix
from sagemaker_local.copies.errors import ArtifactError
from sagemaker_local.resources.listing import page
from sagemaker_local.resources.records import JobRecord, Record
from sagemaker_local.resources.store import Region, get_job, get_record, is_taken, tags

_TYPES: Final = {
    "ModelQuantizationConfig": "Quantization",
    "ModelCompilationConfig": "Compilation",
    "ModelShardingConfig": "Sharding",
    "ModelSpeculativeDecodingConfig": "SpeculativeDecoding",
}
_ENDED: Final = frozenset({"COMPLETED", "FAILED", "STOPPED"})
_SPECIFIC: Final = ("DeploymentInstanceType", "MaxInstanceCount")


class OptimizationJobs:
    """CreateOptimizationJob and related operations.

    States: STARTING, INPROGRESS, COMPLETED or FAILED; STOPPING, STOPPED.
    """

    def __init__(self, region: Region, s3: Callable[[], Any]) -> None:
        """`s3` creates a boto3 client; it is called in a thread."""
        self._region, self._jobs, self._s3 = region, region.store.jobs, s3
        self._lives: dict[str, asyncio.Task[None]] = {}

    @property
    def operations(self) -> dict[str, Handler]:
        return {
            "CreateOptimizationJob": self.create,
            "DescribeOptimizationJob": self.describe,
            "ListOptimizationJobs": self.list_all,
            "StopOptimizationJob": self.stop,
            "DeleteOptimizationJob": self.delete,
        }

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["OptimizationJobName"]
        arn = self._region.arn("optimization-job", name)
        if is_taken(self._jobs, arn):
            raise ResourceInUse(f"Optimization job {name} already exists.")
        _check(request)
        model = request["ModelSource"].get("SageMakerModel", {}).get("ModelName")
        if model is not None:
            get_record(self._region.store.models, model, "model", self._region.arn("model", model))
        now, given = self._region.clock.now(), tags(request)
        source = _source(request, self._region.store.models)
        self._jobs[name] = JobRecord(name, arn, request, now, now, "STARTING", tags=given, source=source)
        self._region.changed()
        self._live(self._jobs[name])
        return {"OptimizationJobArn": arn}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        job = get_job(self._jobs, request["OptimizationJobName"])
        shown = {
            **job.spec,
            "OptimizationJobArn": job.arn,
            "OptimizationJobStatus": job.status,
            "CreationTime": job.created,
            "LastModifiedTime": job.modified,
            **_times(job),
        }
        if job.failure:
            shown["FailureReason"] = job.failure
        if job.output:
            shown["OptimizationOutput"] = job.output
        return shown

    async def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = request.get("OptimizationContains", "").lower()
        jobs = [job for job in self._jobs.values() if wanted in " ".join(_kinds(job)).lower()]
        records, more = page(jobs, request)
        summaries = [
            {
                "OptimizationJobName": job.name,
                "OptimizationJobArn": job.arn,
                "CreationTime": job.created,
                "LastModifiedTime": job.modified,
                "OptimizationJobStatus": job.status,
                "OptimizationTypes": _kinds(job),
                **{key: job.spec[key] for key in _SPECIFIC if key in job.spec},
                **_times(job),
            }
            for job in records
        ]
        return {"OptimizationJobSummaries": summaries, **more}

    async def stop(self, request: dict[str, Any]) -> None:
        job = get_job(self._jobs, request["OptimizationJobName"])
        if job.status in _ENDED or job.status == "STOPPING":
            raise ValidationException(f"Optimization job {job.name} is {job.status} and cannot be stopped.")
        self._lives[job.name].cancel()
        self._region.touch(job, "STOPPING")
        self._lives[job.name] = self._region.spawn(self._stopped(job))

    async def delete(self, request: dict[str, Any]) -> None:
        job = get_job(self._jobs, request["OptimizationJobName"])
        if job.status not in _ENDED:
            raise ValidationException(f"Optimization job {job.name} is {job.status}: stop it first.")
        del self._jobs[job.name]
        self._region.changed()

    def revive(self) -> None:
        """Resume the jobs that were running when the server ended."""
        for job in self._jobs.values():
            if job.status not in _ENDED:
                self._live(job)

    def _live(self, job: JobRecord) -> None:
        self._lives[job.name] = self._region.spawn(self._run(job))

    async def _run(self, job: JobRecord) -> None:
        seconds = self._region.config.durations.job
        await self._region.clock.sleep(seconds / 10)
        job.started = self._region.clock.now()
        self._region.touch(job, "INPROGRESS")
        limit = float(job.spec["StoppingCondition"].get("MaxRuntimeInSeconds", seconds))
        await self._region.clock.sleep(min(seconds, limit))
        job.ended = self._region.clock.now()
        if seconds > limit:
            self._region.touch(job, "FAILED", f"The job ran longer than MaxRuntimeInSeconds, {limit:g} s.")
            return
        try:
            output = job.spec["OutputConfig"]["S3OutputLocation"]
            await asyncio.to_thread(copy_prefix, self._s3, job.source, output)
        except (ClientError, BotoCoreError, ArtifactError) as error:
            self._region.touch(job, "FAILED", f"{job.source} cannot be optimized: {error}")
            return
        for config in job.spec["OptimizationConfigs"]:
            for settings in config.values():
                if "Image" in settings:
                    job.output = {"RecommendedInferenceImage": settings["Image"]}
        self._region.touch(job, "COMPLETED")

    async def _stopped(self, job: JobRecord) -> None:
        await self._region.clock.sleep(self._region.config.durations.deleting)
        job.ended = self._region.clock.now()
        self._region.touch(job, "STOPPED")


def _source(spec: dict[str, Any], models: Mapping[str, Record]) -> str:
    """Return the weights' location; "" if the specification has none."""
    named = spec["ModelSource"].get("SageMakerModel", {}).get("ModelName")
    if named is None:
        return str(spec["ModelSource"]["S3"].get("S3Uri", ""))
    container = models[named].spec.get("PrimaryContainer", {}) if named in models else {}
    source = container.get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
    return str(source or container.get("ModelDataUrl", ""))


def _kinds(job: JobRecord) -> list[str]:
    return [_TYPES[name] for config in job.spec["OptimizationConfigs"] for name in config]


def _times(job: JobRecord) -> dict[str, float]:
    times = {"OptimizationStartTime": job.started, "OptimizationEndTime": job.ended}
    return {name: moment for name, moment in times.items() if moment is not None}


def _check(request: dict[str, Any]) -> None:
    """Raise ValidationException for combinations that the service refuses."""
    configs = request["OptimizationConfigs"]
    kinds = [name for config in configs for name in config]
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValidationException("OptimizationConfigs must name each optimization once, and one at least.")
    if {"ModelCompilationConfig", "ModelSpeculativeDecodingConfig"} <= set(kinds):
        raise ValidationException("Compilation and speculative decoding cannot be combined in one job.")
    if len(request["ModelSource"]) != 1:
        raise ValidationException("ModelSource must have exactly one of S3, SageMakerModel.")
