"""Every operation that is served here, held against botocore's own description of it.

Outputs are checked by botocore's validator on the bytes that were sent. Inputs are generated from the shapes
(`broken_inputs`) and sent past boto3, whose own checks would stop some of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.session import Session
from botocore.validate import ParamValidator

from tests.sagemaker_local.broken_inputs import broken, right
from tests.sagemaker_local.stand import IMAGE, KEY, NEEDS, REGION, ROLE, Stand, run_stand
from tests.waiting import eventually

SCALABLE = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "inference-component/base",
    "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount",
}
ENDPOINT_ARN = f"arn:aws:sagemaker:{REGION}:000000000000:endpoint/e"
SERVICES = {"sagemaker": "SageMaker", "application-autoscaling": "AnyScaleFrontendService"}
_STEP = {
    "AdjustmentType": "ExactCapacity",
    "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 0}],
}
_SPEC = {"ModelName": "m", "ComputeResourceRequirements": NEEDS}
_WALK: list[tuple[str, dict[str, Any]]] = [
    ("CreateModel", {"ModelName": "m", "ExecutionRoleArn": ROLE, "PrimaryContainer": {"Image": IMAGE}}),
    ("DescribeModel", {"ModelName": "m"}),
    ("ListModels", {}),
    (
        "CreateEndpointConfig",
        {
            "EndpointConfigName": "c",
            "ExecutionRoleArn": ROLE,
            "ProductionVariants": [
                {
                    "VariantName": "main",
                    "InstanceType": "ml.g5.12xlarge",
                    "InitialInstanceCount": 1,
                    "ManagedInstanceScaling": {
                        "Status": "ENABLED",
                        "MinInstanceCount": 0,
                        "MaxInstanceCount": 2,
                    },
                    "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
                }
            ],
            "MetricsConfig": {
                "EnableEnhancedMetrics": True,
                "EnableDetailedObservability": True,
                "MetricPublishFrequencyInSeconds": 30,
            },
        },
    ),
    ("DescribeEndpointConfig", {"EndpointConfigName": "c"}),
    ("ListEndpointConfigs", {}),
    ("CreateEndpoint", {"EndpointName": "e", "EndpointConfigName": "c"}),
    ("DescribeEndpoint", {"EndpointName": "e"}),
    ("ListEndpoints", {}),
    (
        "CreateInferenceComponent",
        {
            "InferenceComponentName": "base",
            "EndpointName": "e",
            "VariantName": "main",
            "Specification": _SPEC,
            "RuntimeConfig": {"CopyCount": 0},
        },
    ),
    ("DescribeInferenceComponent", {"InferenceComponentName": "base"}),
    ("ListInferenceComponents", {}),
    (
        "UpdateInferenceComponentRuntimeConfig",
        {"InferenceComponentName": "base", "DesiredRuntimeConfig": {"CopyCount": 0}},
    ),
    (
        "UpdateInferenceComponent",
        {
            "InferenceComponentName": "base",
            "Specification": _SPEC,
            "DeploymentConfig": {
                "RollingUpdatePolicy": {
                    "MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1},
                    "WaitIntervalInSeconds": 0,
                }
            },
        },
    ),
    ("DescribeInferenceComponent", {"InferenceComponentName": "base"}),
    ("AddTags", {"ResourceArn": ENDPOINT_ARN, "Tags": [{"Key": "k", "Value": "v"}]}),
    ("ListTags", {"ResourceArn": ENDPOINT_ARN}),
    ("DeleteTags", {"ResourceArn": ENDPOINT_ARN, "TagKeys": ["k"]}),
    ("RegisterScalableTarget", {**SCALABLE, "MinCapacity": 0, "MaxCapacity": 1}),
    ("DescribeScalableTargets", {"ServiceNamespace": "sagemaker"}),
    ("PutScalingPolicy", {**SCALABLE, "PolicyName": "p", "StepScalingPolicyConfiguration": _STEP}),
    ("DescribeScalingPolicies", {"ServiceNamespace": "sagemaker"}),
    ("DeleteScalingPolicy", {**SCALABLE, "PolicyName": "p"}),
    (
        "PutScheduledAction",
        {
            **SCALABLE,
            "ScheduledActionName": "s",
            "Schedule": "cron(0 8 ? * MON-FRI *)",
            "ScalableTargetAction": {"MinCapacity": 0, "MaxCapacity": 1},
        },
    ),
    ("DescribeScheduledActions", {"ServiceNamespace": "sagemaker"}),
    ("DeleteScheduledAction", {**SCALABLE, "ScheduledActionName": "s"}),
    ("DescribeScalingActivities", {"ServiceNamespace": "sagemaker"}),
    ("DeregisterScalableTarget", SCALABLE),
    (
        "UpdateEndpointWeightsAndCapacities",
        {"EndpointName": "e", "DesiredWeightsAndCapacities": [{"VariantName": "main", "DesiredWeight": 2.0}]},
    ),
    ("UpdateEndpoint", {"EndpointName": "e", "EndpointConfigName": "c"}),
    ("DescribeEndpoint", {"EndpointName": "e"}),
    (
        "CreateAIWorkloadConfig",
        {"AIWorkloadConfigName": "w", "AIWorkloadConfigs": {"WorkloadSpec": {"Inline": "concurrency: 4"}}},
    ),
    ("DescribeAIWorkloadConfig", {"AIWorkloadConfigName": "w"}),
    ("ListAIWorkloadConfigs", {}),
    (
        "CreateAIBenchmarkJob",
        {
            "AIBenchmarkJobName": "b",
            "BenchmarkTarget": {"Endpoint": {"Identifier": "e"}},
            "RoleArn": ROLE,
            "OutputConfig": {"S3OutputLocation": "s3://bucket/out"},
            "AIWorkloadConfigIdentifier": "w",
        },
    ),
    ("DescribeAIBenchmarkJob", {"AIBenchmarkJobName": "b"}),
    ("ListAIBenchmarkJobs", {"StatusEquals": "InProgress"}),
    ("StopAIBenchmarkJob", {"AIBenchmarkJobName": "b"}),
    (
        "CreateAIRecommendationJob",
        {
            "AIRecommendationJobName": "r",
            "ModelSource": {"S3": {"S3Uri": "s3://bucket/model"}},
            "OutputConfig": {"S3OutputLocation": "s3://bucket/out"},
            "AIWorkloadConfigIdentifier": "w",
            "PerformanceTarget": {"Constraints": [{"Metric": "cost"}]},
            "RoleArn": ROLE,
        },
    ),
    ("DescribeAIRecommendationJob", {"AIRecommendationJobName": "r"}),
    ("ListAIRecommendationJobs", {}),
    ("StopAIRecommendationJob", {"AIRecommendationJobName": "r"}),
    ("DescribeAIRecommendationJob", {"AIRecommendationJobName": "r"}),
    ("DeleteAIRecommendationJob", {"AIRecommendationJobName": "r"}),
    ("DeleteAIBenchmarkJob", {"AIBenchmarkJobName": "b"}),
    ("DeleteAIWorkloadConfig", {"AIWorkloadConfigName": "w"}),
    ("DeleteInferenceComponent", {"InferenceComponentName": "base"}),
    ("DeleteEndpoint", {"EndpointName": "e"}),
    ("DeleteEndpointConfig", {"EndpointConfigName": "c"}),
    ("DeleteModel", {"ModelName": "m"}),
    (
        "CreateOptimizationJob",
        {
            "OptimizationJobName": "j",
            "RoleArn": ROLE,
            "ModelSource": {"S3": {"S3Uri": "s3://bucket/model"}},
            "DeploymentInstanceType": "ml.g5.12xlarge",
            "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
            "OptimizationConfigs": [
                {
                    "ModelQuantizationConfig": {
                        "Image": IMAGE,
                        "OverrideEnvironment": {"OPTION_QUANTIZE": "awq"},
                    }
                }
            ],
            "OutputConfig": {"S3OutputLocation": "s3://bucket/out"},
        },
    ),
    ("DescribeOptimizationJob", {"OptimizationJobName": "j"}),
    ("ListOptimizationJobs", {"OptimizationContains": "quant"}),
    ("StopOptimizationJob", {"OptimizationJobName": "j"}),
    ("DescribeOptimizationJob", {"OptimizationJobName": "j"}),
    ("DeleteOptimizationJob", {"OptimizationJobName": "j"}),
]


@cache
def model(service: str) -> Any:
    return Session().get_service_model(service)


def service_of(operation: str) -> str:
    return next(name for name in SERVICES if operation in model(name).operation_names)


OPERATIONS = sorted({name for name, _ in _WALK})


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand"), durations={"job": 3600}) as running:
        yield running


class Raw:
    """Sends any JSON body, signed, in the AWS JSON protocol."""

    def __init__(self, stand: Stand, client: httpx.Client) -> None:
        self._stand, self._client = stand, client

    def __call__(self, operation: str, body: Any) -> tuple[int, Any]:
        service = service_of(operation)
        target = f"{SERVICES[service]}.{operation}"
        data = json.dumps(body).encode()
        headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1"}
        request = AWSRequest("POST", f"{self._stand.url}/", headers, data)
        SigV4Auth(Credentials(KEY["access_key"], KEY["secret_key"]), service, REGION).add_auth(request)
        answer = self._client.post(request.url, headers=dict(request.headers.items()), content=data)
        return answer.status_code, answer.json()


@pytest.fixture(scope="module")
def raw(stand: Stand) -> Iterator[Raw]:
    with httpx.Client(timeout=60) as client:
        yield Raw(stand, client)


def settled(raw: Raw) -> None:
    """Wait until no resource is Creating, Updating or Deleting."""

    def states() -> set[str]:
        endpoints = raw("ListEndpoints", {})[1]["Endpoints"]
        components = raw("ListInferenceComponents", {})[1]["InferenceComponents"]
        found = {item["EndpointStatus"] for item in endpoints}
        return found | {item["InferenceComponentStatus"] for item in components}

    eventually(lambda: states() <= {"InService"})


@pytest.mark.costly("walks the whole API")
def test_every_output_is_what_its_shape_allows(raw: Raw) -> None:
    for operation, given in _WALK:
        settled(raw)
        status, answer = raw(operation, given)
        assert status == 200, (operation, answer)
        shape = model(service_of(operation)).operation_model(operation).output_shape
        if shape is None:
            assert answer == {}
            continue
        report = ParamValidator().validate(answer, shape)
        assert not report.has_errors(), (operation, report.generate_report())
        assert set(answer) <= set(shape.members), operation


def test_metrics_come_at_one_of_sagemakers_intervals(raw: Raw) -> None:
    """botocore's model has no such constraint; its documentation does."""
    given = dict(_WALK)["CreateEndpointConfig"]
    metrics = {"MetricsConfig": {"MetricPublishFrequencyInSeconds": 45}}
    status, answer = raw("CreateEndpointConfig", given | metrics | {"EndpointConfigName": "often"})
    assert (status, answer["__type"]) == (400, "ValidationException")
    assert "10, 30, 60, 120, 180, 240, 300" in answer["message"]
    endpoints = [{"MetricsEndpointPath": "/metrics", "MetricPublishFrequencyInSeconds": 45}]
    container = {"Image": "an/image", "ContainerMetricsConfig": {"MetricsEndpoints": endpoints}}
    model = {"ModelName": "often", "ExecutionRoleArn": ROLE, "PrimaryContainer": container}
    status, answer = raw("CreateModel", model)
    assert (status, "must be one of 10, 30" in answer["message"]) == (400, True)


@pytest.mark.costly("walks the whole API")
def test_all_that_is_served_is_walked_and_the_rest_says_so(raw: Raw) -> None:
    for service in SERVICES:
        served = set()
        for name in model(service).operation_names:
            # A body that no operation takes: what is served refuses it by its shape.
            code = raw(name, {"NoSuchMember": 1})[1]["__type"]
            assert code in ("SerializationException", "UnknownOperationException"), name
            served |= {name} if code == "SerializationException" else set()
        assert served == {name for name in OPERATIONS if service_of(name) == service}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_broken_constraint_is_refused(raw: Raw, operation: str) -> None:
    shape = model(service_of(operation)).operation_model(operation).input_shape
    cases = list(broken(shape, operation))
    for case in cases:
        status, answer = raw(operation, case.value)
        assert (status, answer.get("__type")) == (400, case.code), (case, answer)
        assert case.said in answer["message"], (case.path, case.said, answer)
    assert len(cases) >= 2 + len(shape.required_members)
    # A valid input passes the shape's checks; the resource itself may be missing.
    assert "validation error" not in json.dumps(raw(operation, right(shape))[1])
