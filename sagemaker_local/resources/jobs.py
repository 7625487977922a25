"""Optimization jobs: states and records, and a result that is an unchanged copy of the source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.copies.artifacts import copy_prefix
from sagemaker_local.copies.errors import ArtifactError
from sagemaker_local.resources.collection import Jobs
from sagemaker_local.resources.listing import page
from sagemaker_local.resources.optimization_rules import check_combination
from sagemaker_local.resources.records import OPTIMIZATION_JOB, JobRecord, Record
from sagemaker_local.resources.store import Region, tags

_TYPES: Final = {
    "ModelQuantizationConfig": "Quantization",
    "ModelCompilationConfig": "Compilation",
    "ModelShardingConfig": "Sharding",
    "ModelSpeculativeDecodingConfig": "SpeculativeDecoding",
}
_SPECIFIC: Final = ("DeploymentInstanceType", "MaxInstanceCount")


class OptimizationJobs(Jobs):
    """CreateOptimizationJob and related operations.

    States: STARTING, INPROGRESS, COMPLETED or FAILED; STOPPING, STOPPED.
    """

    ENDED = frozenset({"COMPLETED", "FAILED", "STOPPED"})
    STOPPING, STOPPED = "STOPPING", "STOPPED"

    def __init__(self, region: Region, s3: Callable[[], Any]) -> None:
        """`s3` creates a boto3 client; it is called in a thread."""
        super().__init__(region, OPTIMIZATION_JOB, region.store.jobs)
        self._s3 = s3

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name, arn = self._new_name(request)
        _check(request)
        model = request["ModelSource"].get("SageMakerModel", {}).get("ModelName")
        if model is not None:
            self._region.model(model)
        now, given = self._region.clock.now(), tags(request)
        source = _source(request, self._region.store.models)
        job = JobRecord(name, arn, request, now, now, "STARTING", tags=given, source=source)
        answer = self._add(job)
        self._start(job)
        return answer

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        job = self._get(request)
        shown = {**await super().describe(request), **_state(job)}
        if job.failure:
            shown["FailureReason"] = job.failure
        if job.output:
            shown["OptimizationOutput"] = job.output
        return shown

    async def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = request.get("OptimizationContains", "").lower()
        jobs = [job for job in self._records.values() if wanted in " ".join(_kinds(job)).lower()]
        records, more = page(jobs, request)
        return {"OptimizationJobSummaries": [self._summary(job) for job in records], **more}

    def _summary(self, record: JobRecord) -> dict[str, Any]:
        specific = {key: record.spec[key] for key in _SPECIFIC if key in record.spec}
        kinds = {"OptimizationTypes": _kinds(record)}
        return super()._summary(record) | _state(record) | kinds | specific

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


def _state(job: JobRecord) -> dict[str, Any]:
    times = {"OptimizationStartTime": job.started, "OptimizationEndTime": job.ended}
    known = {name: moment for name, moment in times.items() if moment is not None}
    return {"OptimizationJobStatus": job.status, "LastModifiedTime": job.modified, **known}


def _check(request: dict[str, Any]) -> None:
    """Raise ValidationException for combinations that the service refuses."""
    configs = request["OptimizationConfigs"]
    kinds = [name for config in configs for name in config]
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValidationException("OptimizationConfigs must name each optimization once, and one at least.")
    if len(request["ModelSource"]) != 1:
        raise ValidationException("ModelSource must have exactly one of S3, SageMakerModel.")
    check_combination(configs, request["DeploymentInstanceType"])
