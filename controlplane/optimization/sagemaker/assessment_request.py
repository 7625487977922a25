"""Bodies of CreateAIWorkloadConfig, CreateAIBenchmarkJob and CreateAIRecommendationJob. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.sagemaker.names import MANAGED, OWNER
from controlplane.optimization.models import Assessment


def workload_request(row: Assessment, target: Target, name: str, *, data: str) -> dict[str, Any]:
    """Of a workload configuration that is the job's own. `data`: s3:// prefix of its prompts, or ""."""
    request: dict[str, Any] = {
        "AIWorkloadConfigName": name,
        "AIWorkloadConfigs": {"WorkloadSpec": {"Inline": row.remote["options"]["workload"]}},
        "Tags": _tags(row, target),
    }
    if data:
        channel = {"ChannelName": "prompts", "DataSource": {"S3DataSource": {"S3Uri": data}}}
        request["DatasetConfig"] = {"InputDataConfig": [channel]}
    return request


def assessment_request(
    row: Assessment, target: Target, name: str, *, output: str, adapters: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the body that creates the job.

    Args:
        output: s3:// prefix that it writes below.
        adapters: s3:// folder of each adapter by its id in the request.
    """
    if row.subject == Assessment.Subject.BENCHMARK:
        own = _benchmark(row, name)
    else:
        own = _recommendation(row, name, adapters or {})
    return own | {
        "OutputConfig": {"S3OutputLocation": output},
        "AIWorkloadConfigIdentifier": name,
        "RoleArn": target.role_arn,
        "Tags": _tags(row, target),
    }


def _benchmark(row: Assessment, name: str) -> dict[str, Any]:
    options = row.remote["options"]
    endpoint: dict[str, Any] = {"Identifier": options["endpoint"]}
    if options["component"]:
        endpoint["InferenceComponents"] = [{"Identifier": options["component"]}]
    return {"AIBenchmarkJobName": name, "BenchmarkTarget": {"Endpoint": endpoint}}


def _recommendation(row: Assessment, name: str, adapters: Mapping[str, str]) -> dict[str, Any]:
    options = row.remote["options"]
    request: dict[str, Any] = {
        "AIRecommendationJobName": name,
        "ModelSource": {"S3": {"S3Uri": options["weights"]}},
        "PerformanceTarget": {"Constraints": [{"Metric": options["metric"]}]},
        "OptimizeModel": options["optimize"],
    }
    if options["framework"]:
        request["InferenceSpecification"] = {"Framework": options["framework"]}
    if options["instance_types"]:
        request["ComputeSpec"] = {"InstanceTypes": options["instance_types"]}
    if options["adapters"]:
        # A row of an earlier release has the location itself.
        uris = [
            {"AdapterId": item["id"], "S3Uri": item.get("uri") or adapters[item["id"]]}
            for item in options["adapters"]
        ]
        request["AdapterSource"] = {"S3Uris": uris}
    return request


def _tags(row: Assessment, target: Target) -> list[dict[str, str]]:
    tags = {MANAGED: "graftwork", OWNER: target.owner, "graftwork:base-model": row.base_model.name}
    return [{"Key": key, "Value": value} for key, value in tags.items() if value]
