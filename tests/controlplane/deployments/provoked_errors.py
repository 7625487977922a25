"""Real calls that provoke each error of AWS in `sagemaker.advice`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import botocore.auth
import botocore.session
import pytest

from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.optimization.outputs import output_read
from tests.conftest import free_port
from tests.sagemaker_local.stand import IMAGE, KEY, NEEDS, REGION, ROLE, Stand

ASSUMED = "arn:aws:iam::000000000000:role/deployer"


@dataclass(frozen=True)
class World:
    """A local SageMaker with an endpoint, whose provoked faults are meant for this test alone."""

    stand: Stand
    own: ServicesAccount
    patch: pytest.MonkeyPatch
    folder: Path

    def account(self, *, url: str = "", key: dict[str, str] = KEY) -> ServicesAccount:
        return account_of(key, url or self.stand.url)

    def target(self, **values: str) -> Target:
        kept = {
            "name": "t",
            "kind": "sagemaker",
            "region": REGION,
            "endpoint_url": self.stand.url,
            "role_arn": ROLE,
            "store": "s3://absent-bucket/x",
            "owner": "o",
        }
        return Target(**kept | values)

    def call(self, operation: str = "list_models", **arguments: Any) -> None:
        """Call once, with the account's own credentials."""
        self.own.call(operation, "it", **arguments)

    def refuses(self, operation: str, code: str, message: str = "", status: int = 400) -> None:
        self.stand.put(
            "faults",
            [
                {
                    "kind": "refusal",
                    "operation": operation,
                    "code": code,
                    "message": message,
                    "status": status,
                    "count": 5,
                }
            ],
        )

    def bare(self, **variables: str) -> None:
        """Remove every source of credentials except the environment variables in `variables`."""
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            self.patch.delenv(name)
        files = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
        for name, file in files.items():
            self.patch.setenv(name, str(self.folder / file))
        self.patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name, value in variables.items():
            self.patch.setenv(name, value)


def account_of(key: dict[str, str], url: str) -> ServicesAccount:
    """An account whose calls are not retried."""
    session = boto3.Session(
        aws_access_key_id=key["access_key"], aws_secret_access_key=key["secret_key"], region_name=REGION
    )
    return ServicesAccount(session, endpoint_url=url, patience=0)


def injected(code: str, message: str = "", *, call: str = "list_models", status: int = 400) -> Any:
    """SageMaker refuses a call so."""

    def provoke(world: World) -> None:
        world.refuses("".join(word.title() for word in call.split("_")), code, message, status)
        world.call(call)

    return provoke


def of_service(service: str, operation: str, code: str, message: str = "", **arguments: Any) -> Any:
    """Another service refuses a call so."""

    def provoke(world: World) -> None:
        own = service == "application-autoscaling"
        name = "".join(word.title() for word in operation.split("_"))
        world.refuses(name if own else {"cloudwatch": "monitoring"}[service], code, message)
        world.own.ask(service, operation, "it", **arguments)

    return provoke


def bucket_is_gone(world: World) -> None:
    Store(world.own, world.target(), heartbeat=lambda: None).put("adapters/x", io.BytesIO(b"x"))


def of_store(code: str, message: str, status: int = 400) -> Any:
    """S3 refuses a list so."""

    def provoke(world: World) -> None:
        world.refuses("s3", code, message, status)
        Store(world.own, world.target(), heartbeat=lambda: None).keys("adapters/x")

    return provoke


def of_role(code: str, message: str, status: int = 403) -> Any:
    """STS refuses the target's assume_role_arn so."""

    def provoke(world: World) -> None:
        world.bare(AWS_ACCESS_KEY_ID=KEY["access_key"], AWS_SECRET_ACCESS_KEY=KEY["secret_key"])
        world.refuses("sts", code, message, status)
        ServicesAccount.from_target(world.target(assume_role_arn=ASSUMED))

    return provoke


def clock_is_wrong(world: World) -> None:
    now = botocore.auth.get_current_datetime
    world.patch.setattr(
        botocore.auth, "get_current_datetime", lambda *given: now(*given) - timedelta(hours=1)
    )
    world.call()


def credentials_expire(world: World) -> None:
    world.stand.put("faults", [{"kind": "expired_token", "operation": "ListModels"}])
    world.call()


def key_is_unknown(world: World) -> None:
    world.account(key=KEY | {"access_key": "AKIDOTHER"}).call("list_models", "it")


def secret_is_wrong(world: World) -> None:
    world.account(key=KEY | {"secret_key": "guessed"}).call("list_models", "it")


def _config(world: World, name: str, kind: str) -> None:
    variant = {"VariantName": "main", "InstanceType": kind, "InitialInstanceCount": 1}
    world.call(
        "create_endpoint_config", EndpointConfigName=name, ExecutionRoleArn=ROLE, ProductionVariants=[variant]
    )


def instances_are_used_up(world: World) -> None:
    _config(world, "large", "ml.p5.48xlarge")
    world.call("create_endpoint", EndpointName="large", EndpointConfigName="large")


def _component(world: World, name: str, **needs: float) -> None:
    specification = {"ModelName": "there", "ComputeResourceRequirements": NEEDS | needs}
    world.call(
        "create_inference_component",
        InferenceComponentName=name,
        EndpointName="there",
        VariantName="main",
        Specification=specification,
        RuntimeConfig={"CopyCount": 0},
    )


def components_are_used_up(world: World) -> None:
    _component(world, "first")
    try:
        _component(world, "second")
    finally:
        world.stand.delete_component("first")


def instance_type_is_unknown(world: World) -> None:
    _config(world, "odd", "ml.odd.large")


def copy_is_too_large(world: World) -> None:
    _component(world, "huge", NumberOfAcceleratorDevicesRequired=64)


def endpoint_is_being_made(world: World) -> None:
    _config(world, "busy", "ml.g5.xlarge")
    world.call("create_endpoint", EndpointName="busy", EndpointConfigName="busy")
    world.call("delete_endpoint", EndpointName="busy")


def endpoint_has_gone(world: World) -> None:
    world.call("update_endpoint", EndpointName="gone", EndpointConfigName="there")


def name_is_malformed(world: World) -> None:
    world.call("create_model", ModelName="-no-", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": IMAGE})


def somebody_else_answers(world: World) -> None:
    world.call("list_notebook_instances")


def service_fails(world: World) -> None:
    world.stand.put("faults", [{"kind": "internal_failure", "operation": "ListModels"}])
    world.call()


def service_is_away(world: World) -> None:
    world.stand.put("faults", [{"kind": "unavailable", "operation": "ListModels"}])
    world.call()


def too_many_calls(world: World) -> None:
    world.stand.put("rates", {"ListModels": 0.01})
    world.call()
    world.call()


def no_credentials(world: World) -> None:
    world.bare()
    ServicesAccount.from_target(world.target()).call("list_models", "it")


def profile_is_missing(world: World) -> None:
    world.bare(AWS_PROFILE="nobody")
    ServicesAccount.from_target(world.target())


def credential_process_fails(world: World) -> None:
    (world.folder / "config").write_text("[default]\ncredential_process = /bin/false\n")
    world.bare()
    ServicesAccount.from_target(world.target()).call("list_models", "it")


def no_region(world: World) -> None:
    world.bare()
    ServicesAccount.from_target(world.target(region="", endpoint_url=""))


def region_is_odd(world: World) -> None:
    ServicesAccount.from_target(world.target(region="not_one", endpoint_url=""))


def configuration_is_broken(world: World) -> None:
    (world.folder / "config").write_text("[default\nregion eu")
    world.bare()
    ServicesAccount.from_target(world.target()).call("list_models", "it")


def file_is_archived(world: World) -> None:
    """Really, in the local S3."""
    s3 = world.own.s3
    s3.create_bucket(Bucket="cold", CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_object(Bucket="cold", Key="optimized/model.safetensors", Body=b"x", StorageClass="GLACIER")
    output_read(world.own, "s3://cold/optimized/", heartbeat=lambda: None)


def form_is_wrong(world: World) -> None:
    world.call("create_model", ModelName=5)


def no_certificate(world: World) -> None:
    world.account(url=world.stand.url.replace("http:", "https:")).call("list_models", "it")


def nobody_answers(world: World) -> None:
    world.account(url=f"http://127.0.0.1:{free_port()}").call("list_models", "it")


NOT_AUTHORIZED = "User: arn:aws:sts::1:assumed-role/x is not authorized to perform: "
CASES: list[tuple[Callable[[World], None], str, bool]] = [
    # the call, the beginning of the message, whether the error is transient
    (injected("RequestExpired", "Request has expired", status=403), "The clock of the control", True),
    (clock_is_wrong, "The clock of the control plane's machine is wrong: synchronize it by", True),
    (credentials_expire, "The credentials have expired: renew them", True),
    (key_is_unknown, "AWS does not accept the credentials", False),
    (secret_is_wrong, "AWS does not accept the credentials", False),
    (
        injected("AccessDeniedException", NOT_AUTHORIZED + "iam:PassRole on resource: r", call="list_models"),
        "The control plane's role may not pass the target's role_arn: allow iam:PassRole for",
        False,
    ),
    (of_role("AccessDenied", NOT_AUTHORIZED + "sts:AssumeRole"), "The target's assume_role_arn", False),
    (
        injected("AccessDeniedException", NOT_AUTHORIZED + "sagemaker:ListModels"),
        "The control plane's role lacks the permission for this call: allow the action",
        False,
    ),
    (of_store("AccessDenied", "Access Denied", 403), "The control plane's role lacks", False),
    (injected("OptInRequired", status=403), "The account has no access to this service or region", False),
    (of_role("RegionDisabledException", "STS is not activated"), "The account has no access to", False),
    (of_role("PackedPolicyTooLarge", "too large", 400), "The session policies or tags of the", False),
    (instances_are_used_up, "A quota of the account is exhausted: request an increase in Service", True),
    (components_are_used_up, "A quota of the account is exhausted: request an increase in Service", True),
    (
        injected("ValidationException", "Could not access model data at s3://b/k. Please ensure the role"),
        "SageMaker cannot read the archive: allow the target's role_arn to read the",
        False,
    ),
    (
        injected("ValidationException", "Could not assume role arn:aws:iam::1:role/x."),
        "SageMaker cannot use the target's role_arn: it must exist and trust",
        False,
    ),
    (
        injected("ValidationException", "Requested image 1.dkr.ecr.x.amazonaws.com/y not found."),
        "SageMaker does not accept the container image: check its name,",
        False,
    ),
    (instance_type_is_unknown, "This instance type is not available for endpoints in this", False),
    (copy_is_too_large, "The copies do not fit on the endpoint's instances: raise max_instances", False),
    (
        injected("ValidationException", "Cannot have more than the maximum number of tags"),
        "A limit of SageMaker is reached: distribute the",
        False,
    ),
    (
        of_service(
            "application-autoscaling",
            "describe_scaling_policies",
            "FailedResourceAccessException",
            "cannot read alarms",
            ServiceNamespace="sagemaker",
        ),
        "Application Auto Scaling cannot read its scalable target",
        False,
    ),
    (endpoint_is_being_made, "Another operation on this resource is in progress; the call is", True),
    (
        of_service(
            "application-autoscaling",
            "describe_scalable_targets",
            "ConcurrentUpdateException",
            "a pending update",
            ServiceNamespace="sagemaker",
        ),
        "The resource is in use; the call is retried.",
        True,
    ),
    (of_role("IDPRejectedClaim", "no"), "The source of the control plane's AWS credentials", True),
    (file_is_archived, "The file is archived (S3 Glacier) and cannot be read: restore it, and", False),
    (of_store("KMS.DisabledException", "the key is disabled"), "The KMS key of the bucket cannot be", False),
    (bucket_is_gone, "The bucket of the target's store does not exist: create it", False),
    (
        of_store("IllegalLocationConstraintException", "The eu-west-1 location constraint is incompatible"),
        "The bucket of the target's store is in another region: use a bucket in the target's region.",
        False,
    ),
    (
        of_service("cloudwatch", "describe_alarms", "ResourceNotFound", "gone"),
        "A required resource was deleted in the meantime: it is looked up and created again.",
        True,
    ),
    (endpoint_has_gone, "A required resource was deleted in the", True),
    (
        of_service("cloudwatch", "describe_alarms", "InvalidNextToken", "The next token is invalid"),
        "A list changed while it was read; it is read again.",
        True,
    ),
    (injected("ValidationException", "KMS key x does not exist."), "A resource that the target or", False),
    (somebody_else_answers, "The server does not support this call: check the target's", False),
    (injected("RequestEntityTooLargeException", status=413), "The request is too large for AWS:", False),
    (name_is_malformed, "SageMaker does not accept a value: change the value that it names.", False),
    (
        injected("RequestAbortedException"),
        "The connection to AWS was interrupted; the call is retried.",
        True,
    ),
    (service_fails, "AWS returned an internal error; the call is retried.", True),
    (service_is_away, "AWS returned an internal error; the call is retried.", True),
    (too_many_calls, "AWS throttled the call; it is retried.", True),
    (
        injected("SomethingNew", "what else"),
        "AWS refused the call: see its message for what to change.",
        False,
    ),
    (no_credentials, "The control plane finds no AWS credentials: provide", False),
    (profile_is_missing, "The AWS profile of the control plane's Celery worker is not in its", False),
    (credential_process_fails, "The source of the control plane's AWS credentials provides none:", True),
    (no_region, "No region is set: set the target's region.", False),
    (region_is_odd, "The target's region is not an AWS region: correct it.", False),
    (configuration_is_broken, "The AWS configuration of the control plane's Celery worker", False),
    (form_is_wrong, "A value has a format that SageMaker does not accept: change it.", False),
    (no_certificate, "The server's certificate is not trusted: check the target's endpoint_", True),
    (nobody_answers, "AWS does not respond: check the network, or the target's", True),
]
