"""Instance pools: types that are tried by priority, and one specification of a component for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.sagemaker_local.stand import NEEDS, ROLE, Stand, refused, run_stand

FIRST, SECOND = "ml.g5.12xlarge", "ml.g6.12xlarge"
POOLS = [{"InstanceType": SECOND, "Priority": 2}, {"InstanceType": FIRST, "Priority": 1}]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand"), capacity={FIRST: 1}) as running:
        yield running


def variant(**changes: Any) -> dict[str, Any]:
    found = {"VariantName": "main", "InstancePools": POOLS, "InitialInstanceCount": 1} | changes
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"InstanceType": FIRST}, "either InstanceType or InstancePools"),
        ({"InstancePools": None}, "either InstanceType or InstancePools"),
        ({"InstancePools": [{"InstanceType": FIRST, "Priority": n} for n in (1, 2)]}, "more than once"),
        ({"InstancePools": [{"InstanceType": FIRST, "Priority": 6}]}, "5"),
        ({"InstancePools": [{**POOLS[0], "ModelNameOverride": "m"}]}, "without a ModelNameOverride"),
    ],
)
@pytest.mark.costly("a local SageMaker")
def test_pools_are_checked(stand: Stand, changes: dict[str, Any], says: str) -> None:
    create = stand.client("sagemaker").create_endpoint_config
    values = {"EndpointConfigName": "wrong", "ExecutionRoleArn": ROLE}
    code, message = refused(create, **values, ProductionVariants=[variant(**changes)])
    assert code == "ValidationException"
    assert says in message


@pytest.mark.costly("a local SageMaker with real workers")
def test_the_next_type_is_taken_where_the_first_has_no_capacity(stand: Stand, tiny_model: Any) -> None:
    client = stand.client("sagemaker")
    scaling = {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 2}
    client.create_endpoint_config(
        EndpointConfigName="pools",
        ExecutionRoleArn=ROLE,
        ProductionVariants=[variant(ManagedInstanceScaling=scaling)],
    )
    client.create_endpoint(EndpointName="pools", EndpointConfigName="pools")
    client.get_waiter("endpoint_in_service").wait(
        EndpointName="pools", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
    )
    stand.model("small", OPTION_MODEL_ID=str(tiny_model))
    whole = {**NEEDS, "NumberOfAcceleratorDevicesRequired": 4}
    specs = [
        {"InstanceType": kind, "ModelName": "small", "ComputeResourceRequirements": whole | memory}
        for kind, memory in ((FIRST, {}), (SECOND, {"MinMemoryRequiredInMb": 2048}))
    ]
    arguments = {"InferenceComponentName": "base", "EndpointName": "pools", "VariantName": "main"}
    code, message = refused(client.create_inference_component, **arguments, Specifications=specs[:1])
    assert (code, SECOND in message) == ("ValidationException", True)
    client.create_inference_component(**arguments, Specifications=specs, RuntimeConfig={"CopyCount": 2})
    found = stand.settled("base")
    assert found["InferenceComponentStatus"] == "InService", found
    assert "Specification" not in found
    memory = {
        item["InstanceType"]: item["ComputeResourceRequirements"]["MinMemoryRequiredInMb"]
        for item in found["Specifications"]
    }
    assert memory == {FIRST: 1024, SECOND: 2048}
    placed = {
        item["InstanceType"]: item["CurrentCopyCount"] for item in found["RuntimeConfig"]["PlacementStatus"]
    }
    assert placed == {FIRST: 1, SECOND: 1}
    shown = client.describe_endpoint(EndpointName="pools")["ProductionVariants"][0]
    assert shown["InstancePools"] == [
        {"InstanceType": FIRST, "CurrentInstanceCount": 1},
        {"InstanceType": SECOND, "CurrentInstanceCount": 1},
    ]
    stand.delete_component("base")


@pytest.mark.costly("a local SageMaker")
def test_an_endpoint_without_any_capacity_fails_with_awss_words(stand: Stand) -> None:
    client = stand.client("sagemaker")
    only = variant(InstancePools=None, InstanceType=FIRST, InitialInstanceCount=2)
    client.create_endpoint_config(EndpointConfigName="none", ExecutionRoleArn=ROLE, ProductionVariants=[only])
    client.create_endpoint(EndpointName="none", EndpointConfigName="none")
    waiter = client.get_waiter("endpoint_in_service")
    with pytest.raises(Exception, match="Failed"):
        waiter.wait(EndpointName="none", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300})
    assert "InsufficientInstanceCapacity" in client.describe_endpoint(EndpointName="none")["FailureReason"]
