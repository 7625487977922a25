"""Each row of `sagemaker.advice`, provoked by a real call to the local SageMaker or to a broken server.

What an account alone could refuse (roles, images, other services' policies) is injected there, and comes to
boto3 over the wire as AWS would send it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.auth
import botocore.exceptions
import botocore.session
import pytest
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from controlplane import optimization
from controlplane.deployments.provisioners import sagemaker
from controlplane.deployments.provisioners.base import ProvisioningError, ThrottledError
from controlplane.deployments.provisioners.sagemaker import advice
from controlplane.deployments.provisioners.sagemaker.errors import failure_reason, provisioning_error
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from tests.controlplane.deployments.provoked_errors import CASES, World, account_of
from tests.sagemaker_local.stand import KEY, Stand, run_stand


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(
        tmp_path_factory.mktemp("stand"),
        quotas={"ml.p5.48xlarge": 0},
        component_quota=1,
        durations={"endpoint": 3.0},
    ) as running:
        running.endpoint("there")
        running.model("there")
        yield running


@pytest.fixture(scope="module")
def services_account(stand: Stand) -> Iterator[ServicesAccount]:
    made = account_of(KEY, stand.url)
    yield made
    made.close()


@pytest.fixture
def world(
    stand: Stand, services_account: ServicesAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[World]:
    yield World(stand, services_account, monkeypatch, tmp_path)
    stand.put("faults", [])
    stand.put("rates", {})


@pytest.mark.parametrize(
    ("provoke", "sentence", "transient"),
    CASES,
    ids=[f"{number}-{case[1][:40]}" for number, case in enumerate(CASES)],
)
def test_a_provoked_error(
    world: World, provoke: Callable[[World], None], sentence: str, transient: bool
) -> None:
    with pytest.raises(ProvisioningError) as caught:
        provoke(world)
    assert str(caught.value).startswith(sentence)
    assert re.search(r" \((\w+) .+: .+: .+\)$", str(caught.value), re.S), "what AWS said follows"
    assert caught.value.transient is transient
    assert isinstance(caught.value, ThrottledError) == (sentence == advice.THROTTLED)


def test_no_row_is_left_out() -> None:
    rows = [*advice.REFUSALS, *(row for _, row in advice.UNSENT)]
    sentences = {row.advice for row in rows} | {advice.THROTTLED, advice.UNKNOWN}
    provoked = {sentence for sentence in sentences if any(sentence.startswith(case[1]) for case in CASES)}
    assert sentences == provoked
    reasons = {row.advice for row in advice.FAILURES}
    assert reasons == {text for text in reasons if any(text.startswith(said) for _, said in FAILED)}


FAILED = [
    # FailureReasons as SageMaker and its containers word them
    ("The update was rolled back: alarm gw-x went into the ALARM state.", "An alarm of the update went off:"),
    ("The update did not end within MaximumExecutionTimeoutInSeconds", "The update exceeded its time limit"),
    (
        "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error.",
        "AWS has no capacity for this instance type: try again later,",
    ),
    (
        "There is not enough hardware resources on the instances to create a copy for this inference "
        "component.",
        "A copy does not fit on the instances: raise max_instances,",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "The container ran out of memory: lower max_model_len",
    ),
    (
        "The container refused it (400): rank 64 of the adapter is more than max_lora_rank 16",
        "The adapter's rank exceeds the container's maximum: raise options.max_lora_rank.",
    ),
    (
        "CannotPullContainerError: pull image manifest: repository does not exist",
        "The image cannot be pulled: check its name",
    ),
    ("Failed to download model data from s3://b/k: 403", "The model's or adapter's files cannot be read"),
    (
        "The container did not pass the ping health check. Please check CloudWatch logs.",
        "The container did not become healthy: see its log in",
    ),
    ("The account-level service limit was reached.", "A quota of the account is exhausted: request an"),
    (
        "Request to service failed.",
        "SageMaker could not create or update the resource: fix the cause that it names, then retry.",
    ),
]


@pytest.mark.parametrize(("reason", "sentence"), FAILED)
def test_why_a_component_failed(world: World, reason: str, sentence: str) -> None:
    world.stand.put("faults", [{"kind": "start_failure", "component": "failing", "message": reason}])
    world.stand.base("failing", "there", "there", settle=False)
    try:
        told = world.stand.settled("failing")
        assert told["InferenceComponentStatus"] == "Failed"
        text = failure_reason(told["FailureReason"])
        assert text.startswith(sentence)
        assert reason in text
    finally:
        world.stand.delete_component("failing")


_OPTIMIZATION = Path(str(optimization.__file__)).parent
SOURCES = (
    *Path(str(sagemaker.__file__)).parent.glob("*.py"),
    *(_OPTIMIZATION / "sagemaker").glob("*.py"),
    _OPTIMIZATION / "outputs.py",
)
SERVICES = ("sagemaker", "application-autoscaling", "cloudwatch", "s3", "sts")
TRANSFER = {"create_multipart_upload", "upload_part", "complete_multipart_upload", "put_object"}
"""What boto3 calls for `upload_fileobj`."""
CHAIN = {"assume_role_with_web_identity"}
"""What botocore calls for credentials, in the middle of any call of ours."""
FAMILIES = {
    "describe_": (
        "endpoint",
        "endpoint_config",
        "inference_component",
        "model",
        "ai_benchmark_job",
        "ai_recommendation_job",
    ),
    "delete_": ("endpoint", "endpoint_config", "inference_component", "model"),
    "create_": ("ai_benchmark_job", "ai_recommendation_job"),
    "stop_": ("ai_benchmark_job", "ai_recommendation_job"),
}
"""Calls whose names are put together, by how they begin."""
COMMON = (
    "AccessDeniedException",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InternalFailure",
    "MalformedHttpRequestException",
    "NotAuthorized",
    "OptInRequired",
    "RequestAbortedException",
    "RequestEntityTooLargeException",
    "RequestExpired",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ThrottlingException",
    "UnrecognizedClientException",
    "UnknownOperationException",
    "ValidationError",
    "InternalDependencyException",
    "SlowDown",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "AccessDenied",
    "InvalidObjectState",
    "NoSuchBucket",
    "NoSuchKey",
    "PermanentRedirect",
    "KMS.DisabledException",
    "301",
    "307",
    "403",
    "404",
    "500",
    "503",
)
"""Those that AWS names for every service, S3's own, and what HEAD requests show instead."""


def declared() -> set[tuple[str, str]]:
    """(operation, code) of each error that botocore's models name for the calls in the code above."""
    text = "\n".join(path.read_text() for path in SOURCES)
    words = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", text)) | TRANSFER | CHAIN
    assert set(re.findall(r'f"([a-z]+_)\{', text)) == set(FAMILIES), "a name that nobody has taken apart"
    words |= {verb + kind for verb, kinds in FAMILIES.items() for kind in kinds}
    found = set()
    for service in SERVICES:
        model = botocore.session.Session().get_service_model(service)
        for operation in model.operation_names:
            if xform_name(operation) in words:
                for shape in model.operation_model(operation).error_shapes:
                    code = shape.metadata.get("error", {}).get("code", shape.name)
                    found.add((operation, str(code)))
    return found


def test_every_error_that_a_call_of_ours_may_answer_has_a_row() -> None:
    pairs = declared()
    assert {operation for operation, _ in pairs} >= {
        "CreateEndpoint",
        "CreateInferenceComponent",
        "UpdateInferenceComponent",
        "PutScalingPolicy",
        "PutMetricAlarm",
        "PutObject",
        "GetObject",
        "AssumeRole",
        "AssumeRoleWithWebIdentity",
        "CreateOptimizationJob",
        "StopOptimizationJob",
        "CreateAIBenchmarkJob",
        "DescribeAIRecommendationJob",
        "StopAIRecommendationJob",
        "DeleteAIWorkloadConfig",
    }
    unknown = []
    for operation, code in sorted(pairs | {("any", code) for code in COMMON}):
        error = ClientError({"Error": {"Code": code, "Message": ""}}, operation)
        told = provisioning_error(error, operation=operation, about="it")
        if str(told).startswith(advice.UNKNOWN):
            unknown.append((operation, code))
    assert unknown == []


def test_what_botocore_says_itself_is_never_taken_for_a_refusal() -> None:
    """No exception of botocore came from AWS: "AWS refuses" would send the operator to the wrong place."""
    kinds: set[Any] = {
        kind
        for kind in vars(botocore.exceptions).values()
        if isinstance(kind, type) and issubclass(kind, BotoCoreError)
    }
    assert len(kinds) > 50
    for kind in kinds:
        told = provisioning_error(kind.__new__(kind), operation="list_models", about="it")
        assert not str(told).startswith(advice.UNKNOWN), kind
