"""Every refusal of AWS's becomes a sentence that says what to do, and says whether a retry helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)
from botocore.stub import Stubber

from controlplane.deployments.provisioners.base import ProvisioningError, ThrottledError
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.errors import failure_reason, provisioning_error


@pytest.fixture
def account() -> Iterator[Account]:
    session = boto3.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name="eu-central-1")
    made = Account(session, endpoint_url=None, patience=0)
    yield made
    made.close()


def refused(account: Account, code: str, message: str, status: int = 400) -> ProvisioningError:
    with Stubber(account.sagemaker) as stub:
        stub.add_client_error("describe_endpoint", code, message, status)
        with pytest.raises(ProvisioningError) as caught:
            account.call("describe_endpoint", "gw-x", EndpointName="gw-x")
    return caught.value


@pytest.mark.parametrize(
    ("code", "message", "advice", "transient"),
    [
        ("ThrottlingException", "Rate exceeded", "throttled the call", True),
        ("TooManyRequestsException", "", "throttled the call", True),
        (
            "AccessDeniedException",
            "not authorized to perform: sagemaker:CreateModel",
            "lacks the permission",
            False,
        ),
        ("AccessDeniedException", "not authorized to perform: iam:PassRole on x", "iam:PassRole", False),
        ("AccessDenied", "not authorized to perform: sts:AssumeRole", "sts:AssumeRole on both sides", False),
        ("ExpiredTokenException", "The security token is expired", "renew them", True),
        ("UnrecognizedClientException", "The security token is invalid", "does not accept the cred", False),
        ("ResourceLimitExceeded", "ml.g5.12xlarge for endpoint usage is 0", "Service Quotas", True),
        (
            "ValidationException",
            "Could not access model data at s3://b/k",
            "read the bucket of the target's",
            False,
        ),
        ("ValidationException", "SageMaker cannot assume the role x", "trust sagemaker.amazonaws.com", False),
        ("ValidationException", "Requested image 1.dkr.ecr... not found.", "container image", False),
        (
            "ValidationException",
            "Instance type ml.x is not supported in region",
            "choose another instance_type",
            False,
        ),
        ("ValidationException", "Not enough accelerator devices on variant", "raise max_instances", False),
        (
            "ValidationException",
            "Maximum number of inference components reached",
            "adapter_scope named",
            False,
        ),
        ("ValidationException", "Cannot update in-progress endpoint", "in progress", True),
        ("ResourceInUse", "Resource is in use", "in progress", True),
        ("NoSuchBucket", "The specified bucket does not exist", "create it in the target's region", False),
        ("PermanentRedirect", "must be addressed using", "another region", False),
        ("OptInRequired", "", "enable it", False),
        ("InternalFailure", "", "an internal error", True),
        ("ServiceUnavailable", "", "an internal error", True),
        ("ValidationException", 'Could not find inference component "arn:x/y".', "looked up", True),
        ("ValidationException", 'Could not find variant v on endpoint "arn:x/y".', "looked up", True),
        ("ValidationException", "Cannot create endpoint: subnet s-1 does not exist", "name another", False),
        ("ValidationException", "KMS key arn:aws:kms:x:1:key/y does not exist.", "name another", False),
        ("ValidationException", "1 validation error detected", "does not accept a value", False),
        ("SomethingNew", "what else", "see its message for what to change", False),
    ],
)
def test_refusals(account: Account, code: str, message: str, advice: str, transient: bool) -> None:
    error = refused(account, code, message)
    assert advice in str(error)
    assert f"describe_endpoint gw-x: {code}: {message}" in str(error), "nothing is hidden"
    assert error.transient is transient
    assert isinstance(error, ThrottledError) == ("throttled" in advice)


@pytest.mark.parametrize(
    ("error", "advice", "transient"),
    [
        (NoCredentialsError(), "finds no AWS credentials", False),
        (EndpointConnectionError(endpoint_url="https://x"), "does not respond", True),
        (ConnectTimeoutError(endpoint_url="https://x"), "does not respond", True),
        (ReadTimeoutError(endpoint_url="https://x"), "does not respond", True),
        (ParamValidationError(report="x"), "a format that SageMaker does not accept", False),
    ],
)
def test_what_comes_from_this_side(error: Exception, advice: str, transient: bool) -> None:
    told = provisioning_error(error, operation="create_model", about="gw-x")
    assert advice in str(told)
    assert told.transient is transient


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity",
            "no capacity for",
        ),
        ("Not enough hardware resources on the endpoint", "does not fit on the instances"),
        ("CUDA out of memory. Tried to allocate", "lower max_model_len"),
        ("LoRA rank 64 is greater than max_lora_rank 16.", "raise options.max_lora_rank"),
        ("CannotPullContainerError: image not found", "cannot be pulled"),
        ("Failed to download model data from s3://b/k", "allow role_arn to read"),
        ("The primary container did not pass the ping health check.", "CloudWatch"),
        ("", "fix the cause that it names, then retry"),
    ],
)
def test_why_a_resource_failed(text: str, advice: str) -> None:
    assert advice in failure_reason(text)
    assert text in failure_reason(text)


def test_absence_and_presence_are_no_errors(account: Account) -> None:
    def call_with_error(operation: str, code: str, message: str, how: Any, **arguments: str) -> Any:
        with Stubber(account.sagemaker) as stub:
            stub.add_client_error(operation, code, message)
            return how(operation, "x", **arguments)

    absent = 'Could not find endpoint "arn:aws:sagemaker:eu-central-1:1:endpoint/x".'
    assert (
        call_with_error("describe_endpoint", "ValidationException", absent, account.find, EndpointName="x")
        is None
    )
    call_with_error("delete_endpoint", "ValidationException", absent, account.take_away, EndpointName="x")
    there = "Cannot create already existing endpoint."
    make = {"EndpointName": "x", "EndpointConfigName": "y"}
    call_with_error("create_endpoint", "ValidationException", there, account.make, **make)
    with pytest.raises(ProvisioningError) as caught:
        call_with_error("create_endpoint", "ValidationException", "wrong", account.make, **make)
    assert isinstance(caught.value.__cause__, ClientError)
