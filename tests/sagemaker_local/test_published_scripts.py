"""Instance types, variant names and ARNs built from names, as published examples use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.session import Session

from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.resources.instances import Size, size
from tests.sagemaker_local.stand import IMAGE, REGION, ROLE, Stand, refused, run_stand

NOT_PUBLISHED = ("ml.g7.", "ml.g7e.", "ml.p6-b300.", "ml.p6e-gb200.")


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An endpoint `Shared-One` with two variants for inference components, without a copy."""
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        running.client("sagemaker").create_model(
            ModelName="My-Model", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": IMAGE}
        )
        configure(running, "Shared-Config", "one", "two")
        sagemaker = running.client("sagemaker")
        sagemaker.create_endpoint(EndpointName="Shared-One", EndpointConfigName="Shared-Config")
        sagemaker.get_waiter("endpoint_in_service").wait(
            EndpointName="Shared-One", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
        )
        yield running


def variants(*names: str, kind: str = "ml.t2.medium") -> list[dict[str, Any]]:
    return [{"VariantName": name, "InstanceType": kind, "InitialInstanceCount": 1} for name in names]


def configure(stand: Stand, name: str, *names: str, **more: Any) -> None:
    stand.client("sagemaker").create_endpoint_config(
        EndpointConfigName=name, ExecutionRoleArn=ROLE, ProductionVariants=variants(*names), **more
    )


@pytest.mark.costly("starts a local SageMaker of its own")
def test_a_variant_that_stands_twice_is_refused(stand: Stand) -> None:
    said = ("ValidationException", 'The variant name "one" was non-unique within the request.')
    sagemaker = stand.client("sagemaker")
    create = {"EndpointConfigName": "twice", "ExecutionRoleArn": ROLE}
    assert (
        refused(sagemaker.create_endpoint_config, **create, ProductionVariants=variants("one", "one")) == said
    )
    assert said == refused(
        sagemaker.create_endpoint_config,
        **create,
        ProductionVariants=variants("one"),
        ShadowProductionVariants=variants("one"),
    )
    assert said == refused(
        sagemaker.update_endpoint_weights_and_capacities,
        EndpointName="Shared-One",
        DesiredWeightsAndCapacities=[{"VariantName": "one", "DesiredWeight": weight} for weight in (1, 2)],
    )
    weights = sagemaker.describe_endpoint(EndpointName="Shared-One")["ProductionVariants"]
    assert [variant["DesiredWeight"] for variant in weights] == [1.0, 1.0]


@pytest.mark.costly("starts a local SageMaker of its own")
def test_variants_that_are_not_there_are_named(stand: Stand) -> None:
    assert refused(
        stand.client("sagemaker").update_endpoint_weights_and_capacities,
        EndpointName="Shared-One",
        DesiredWeightsAndCapacities=[
            {"VariantName": name, "DesiredWeight": 1} for name in ("one", "three", "four")
        ],
    ) == (
        "ValidationException",
        'The variant name(s) "three, four" is/are not present within endpoint configuration "Shared-Config".',
    )


@pytest.mark.costly("starts a local SageMaker of its own")
@pytest.mark.parametrize(
    "path", ["model/My-Model", "endpoint-config/Shared-Config", "endpoint/Shared-One", "endpoint/shared-one"]
)
def test_tags_by_an_arn_that_a_script_builds(stand: Stand, path: str) -> None:
    sagemaker = stand.client("sagemaker")
    account = stand.client("sts").get_caller_identity()["Account"]
    arn = f"arn:aws:sagemaker:{REGION}:{account}:{path}"
    sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "team", "Value": "nlp"}])
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "nlp"}]
    described = sagemaker.list_tags(ResourceArn=arn.lower())["Tags"]
    assert described == [{"Key": "team", "Value": "nlp"}]
    sagemaker.delete_tags(ResourceArn=arn, TagKeys=["team"])
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == []
    other = arn.replace(account, "123456789012")
    assert refused(sagemaker.list_tags, ResourceArn=other)[0] == "ValidationException"


@pytest.mark.costly("starts a local SageMaker of its own")
def test_names_differ_by_more_than_case(stand: Stand) -> None:
    sagemaker = stand.client("sagemaker")
    for call, arguments in (
        (sagemaker.create_endpoint, {"EndpointName": "shared-one", "EndpointConfigName": "Shared-Config"}),
        (
            sagemaker.create_model,
            {"ModelName": "MY-MODEL", "ExecutionRoleArn": ROLE, "PrimaryContainer": {"Image": IMAGE}},
        ),
        (
            sagemaker.create_endpoint_config,
            {
                "EndpointConfigName": "SHARED-config",
                "ProductionVariants": variants("a"),
                "ExecutionRoleArn": ROLE,
            },
        ),
    ):
        code, message = refused(call, **arguments)
        assert code == "ValidationException"
        assert message.startswith("Cannot create already existing")


def named_types() -> list[str]:
    model = Session().get_service_model("sagemaker")
    return list(model.shape_for("ProductionVariantInstanceType").enum)


@pytest.mark.parametrize("name", [name for name in named_types() if not name.startswith(NOT_PUBLISHED)])
def test_every_type_that_botocore_names_has_a_size(name: str) -> None:
    found = size(name, {})
    assert found.cpus >= 1
    assert found.memory_mib >= 1024 * found.cpus
    assert (found.accelerators > 0) == name.startswith(
        ("ml.g4", "ml.g5", "ml.g6", "ml.p", "ml.inf", "ml.trn", "ml.dl")
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ml.t2.medium", Size(0, 2, 4096)),
        ("ml.m5.large", Size(0, 2, 8192)),
        ("ml.m4.xlarge", Size(0, 4, 16_384)),
        ("ml.c4.8xlarge", Size(0, 36, 61_440)),
        ("ml.c5.9xlarge", Size(0, 36, 73_728)),
        ("ml.r5.12xlarge", Size(0, 48, 393_216)),
        ("ml.r8g.medium", Size(0, 1, 8192)),
        ("ml.p3.2xlarge", Size(1, 8, 62_464)),
        ("ml.g5.12xlarge", Size(4, 48, 196_608)),
    ],
)
def test_sizes_are_those_that_aws_publishes(name: str, expected: Size) -> None:
    assert size(name, {}) == expected


def test_the_configuration_names_what_the_server_does_not_know() -> None:
    own = {"accelerators": 1, "cpus": 8, "memory_mib": 32_768}
    with pytest.raises(ValidationException, match="instance_types"):
        size("ml.g7.2xlarge", {})
    assert size("ml.g7.2xlarge", {"ml.g7.2xlarge": own}) == Size(1, 8, 32_768)
    for wrong in ("ml.x9.large", "ml.m5", "m5.large", "ml.m5.hugexlarge"):
        with pytest.raises(ValidationException):
            size(wrong, {})
