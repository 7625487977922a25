"""Document 001's calls, by unmodified boto3: models, endpoints, bases and adapters over real workers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sagemaker_local.stand import IMAGE, NEEDS, ROLE, SMALL, Stand, refused, run_stand
from tests.waiting import eventually

pytestmark = pytest.mark.costly("real workers behind the local SageMaker")


@pytest.fixture(scope="module")
def stand(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An endpoint `shared` with a base `base` of two copies."""
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        running.model("tiny", running.upload("tiny/model.tar.gz", tiny_model))
        running.endpoint("shared")
        running.base("base", "shared", "tiny", copies=2)
        yield running


def test_adapters_are_components_of_their_own(stand: Stand, tiny_adapters: dict[str, Path]) -> None:
    plain = stand.upload("adapters/plain.tar.gz", tiny_adapters["plain"])
    every = stand.upload("adapters/all.tar.gz", tiny_adapters["all"])
    assert stand.adapter("bot", "shared", "base", plain)["InferenceComponentStatus"] == "InService"
    of_base, of_plain = stand.ask("shared", "base"), stand.ask("shared", "bot")
    assert of_base != of_plain
    stand.client("sagemaker").update_inference_component(
        InferenceComponentName="bot", Specification={"Container": {"ArtifactUrl": every}}
    )
    assert stand.settled("bot")["Specification"]["Container"]["ArtifactUrl"] == every
    of_every = stand.ask("shared", "bot")
    assert of_every not in (of_base, of_plain)
    assert [stand.ask("shared", "bot") for _ in range(6)] == [of_every] * 6, "in both copies"
    stand.delete_component("bot")
    assert "not found" in refused(stand.ask, endpoint="shared", component="bot")[1]
    assert stand.ask("shared", "base") == of_base


def test_an_adapter_that_the_container_refuses_fails_in_its_words(
    stand: Stand, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    found = stand.adapter("bad", "shared", "base", stand.upload("adapters/bad.tar.gz", tmp_path))
    assert found["InferenceComponentStatus"] == "Failed"
    assert "refused" in found["FailureReason"]
    good = stand.upload("adapters/plain.tar.gz", tiny_adapters["plain"])
    stand.client("sagemaker").update_inference_component(
        InferenceComponentName="bad", Specification={"Container": {"ArtifactUrl": good}}
    )
    assert stand.settled("bad")["InferenceComponentStatus"] == "InService"
    assert stand.ask("shared", "bad") != stand.ask("shared", "base")
    stand.delete_component("bad")
    missing = stand.adapter("none", "shared", "base", "s3://artifacts/no/such.tar.gz")
    assert "s3://artifacts/no/such.tar.gz" in missing["FailureReason"]
    stand.delete_component("none")


def test_copies_follow_the_count_and_lost_ones_are_replaced(stand: Stand) -> None:
    sagemaker = stand.client("sagemaker")
    set_copies = sagemaker.update_inference_component_runtime_config
    before = stand.workers()
    assert len(before) == 2
    set_copies(InferenceComponentName="base", DesiredRuntimeConfig={"CopyCount": 1})
    counts = stand.settled("base")["RuntimeConfig"]
    assert (counts["DesiredCopyCount"], counts["CurrentCopyCount"], len(stand.workers())) == (1, 1, 1)
    set_copies(InferenceComponentName="base", DesiredRuntimeConfig={"CopyCount": 0})
    stand.settled("base")
    assert stand.workers() == []
    code, message = refused(stand.ask, endpoint="shared", component="base")
    assert code == "ValidationError"
    assert "has no capacity to process this request" in message
    set_copies(InferenceComponentName="base", DesiredRuntimeConfig={"CopyCount": 2})
    stand.settled("base")
    after = stand.workers()
    assert len(after) == 2
    os.kill(after[0], signal.SIGKILL)

    def copies() -> int:
        return int(stand.settled("base")["RuntimeConfig"]["CurrentCopyCount"])

    eventually(lambda: copies() == 1)
    eventually(lambda: copies() == 2)
    assert len(stand.workers()) == 2
    assert after[0] not in stand.workers()
    assert stand.ask("shared", "base")


def test_requests_go_to_the_copy_with_the_fewest(stand: Stand) -> None:
    """Eight concurrent requests over two copies: four each, by the workers' own counts."""
    ports = [
        int(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0--port\0")[1].split(b"\0")[0])
        for pid in stand.workers()
    ]

    def generated() -> list[int]:
        texts = [httpx.get(f"http://127.0.0.1:{port}/metrics").text for port in ports]
        name = "graftwork_worker_generated_tokens_total "
        return [int(float(text.partition("\n" + name)[2].split()[0])) for text in texts]

    before, runtime = generated(), stand.client("sagemaker-runtime")
    parameters = {"max_new_tokens": 400, "do_sample": False, "ignore_eos_token": True}
    body = json.dumps({"inputs": "hello", "parameters": parameters})

    def ask() -> None:
        runtime.invoke_endpoint(
            EndpointName="shared", InferenceComponentName="base", Body=body, ContentType="application/json"
        )["Body"].read()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [after - old for after, old in zip(generated(), before, strict=True)] == [1600, 1600]


def test_a_model_of_an_endpoint_needs_no_component(stand: Stand, tiny_model: Path) -> None:
    stand.model("local-folder", OPTION_MODEL_ID=str(tiny_model))
    stand.endpoint("single", ModelName="local-folder")
    assert stand.ask("single") == stand.ask("shared", "base")
    sagemaker = stand.client("sagemaker")
    variant = sagemaker.describe_endpoint(EndpointName="single")["ProductionVariants"][0]
    assert (variant["CurrentInstanceCount"], variant["DesiredInstanceCount"]) == (1, 1)
    code, message = refused(
        stand.client("sagemaker-runtime").invoke_endpoint,
        EndpointName="single",
        TargetVariant="none",
        Body=b"{}",
    )
    assert (code, message) == (
        "ValidationError",
        "Variant none of endpoint single of account 000000000000 not found.",
    )
    sagemaker.delete_endpoint(EndpointName="single")
    sagemaker.get_waiter("endpoint_deleted").wait(EndpointName="single", WaiterConfig={"Delay": 0.1})
    assert len(stand.workers()) == 2


def test_what_serves_outlives_its_model_and_configuration(stand: Stand, tiny_model: Path) -> None:
    """DeleteModel and DeleteEndpointConfig delete only the entry."""
    sagemaker = stand.client("sagemaker")
    stand.model("passing", OPTION_MODEL_ID=str(tiny_model))
    stand.endpoint("kept", ModelName="passing")
    answer = stand.ask("kept")
    sagemaker.delete_model(ModelName="passing")
    assert refused(sagemaker.describe_model, ModelName="passing")[0] == "ValidationException"
    for call in (sagemaker.create_endpoint, sagemaker.update_endpoint):
        name = "late" if call == sagemaker.create_endpoint else "kept"
        code, message = refused(call, EndpointName=name, EndpointConfigName="kept")
        assert code == "ValidationException"
        assert message.startswith("Could not find model")
        assert message.endswith(':model/passing".')
    sagemaker.delete_endpoint_config(EndpointConfigName="kept")
    sagemaker.update_endpoint_weights_and_capacities(
        EndpointName="kept", DesiredWeightsAndCapacities=[{"VariantName": "main", "DesiredInstanceCount": 2}]
    )
    sagemaker.get_waiter("endpoint_in_service").wait(
        EndpointName="kept", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
    )
    found = sagemaker.describe_endpoint(EndpointName="kept")
    assert "FailureReason" not in found
    assert found["ProductionVariants"][0]["CurrentInstanceCount"] == 2
    assert len(stand.workers()) == 4
    assert [stand.ask("kept") for _ in range(2)] == [answer] * 2
    sagemaker.delete_endpoint(EndpointName="kept")
    sagemaker.get_waiter("endpoint_deleted").wait(EndpointName="kept", WaiterConfig={"Delay": 0.1})
    assert len(stand.workers()) == 2


def test_a_component_scales_once_its_model_is_deleted(stand: Stand, tiny_model: Path) -> None:
    sagemaker = stand.client("sagemaker")
    stand.model("passing", OPTION_MODEL_ID=str(tiny_model))
    stand.base("lasting", "shared", "passing")
    sagemaker.delete_model(ModelName="passing")
    sagemaker.update_inference_component_runtime_config(
        InferenceComponentName="lasting", DesiredRuntimeConfig={"CopyCount": 2}
    )
    found = stand.settled("lasting")
    assert (found["RuntimeConfig"]["CurrentCopyCount"], found.get("FailureReason")) == (2, None)
    specification = found["Specification"]
    assert specification["ModelName"] == "passing"
    assert specification["Container"]["DeployedImage"]["SpecifiedImage"] == IMAGE
    stand.delete_component("lasting")


def test_what_is_not_there_or_in_the_way_is_refused(stand: Stand) -> None:
    sagemaker = stand.client("sagemaker")
    spec = {"ModelName": "tiny", "ComputeResourceRequirements": NEEDS}
    component = {"InferenceComponentName": "new", "EndpointName": "shared", "VariantName": "main"}
    create = sagemaker.create_inference_component
    one = {"CopyCount": 1}
    many = {**spec, "ComputeResourceRequirements": {**NEEDS, "NumberOfAcceleratorDevicesRequired": 5}}
    adapter = {"BaseInferenceComponentName": "base", "Container": {"ArtifactUrl": "s3://a/b.tar.gz"}}
    for call, arguments, said in (
        (sagemaker.describe_model, {"ModelName": "none"}, "Could not find model"),
        (sagemaker.delete_endpoint, {"EndpointName": "shared"}, "has inference components"),
        (create, component | {"InferenceComponentName": "base", "Specification": spec}, "already existing"),
        (create, component | {"EndpointName": "none", "Specification": spec}, "Could not find endpoint"),
        (create, component | {"VariantName": "none", "Specification": spec}, "Could not find variant"),
        (create, component | {"Specification": {**spec, "ModelName": "none"}}, "Could not find model"),
        (
            create,
            component | {"Specification": {"ModelName": "tiny"}},
            "ComputeResourceRequirements is required",
        ),
        (create, component | {"Specification": many}, "exceed what ml.g5.12xlarge has"),
        (create, component | {"Specification": {**adapter, **spec}}, "takes no ComputeResourceRequirements"),
        (create, component | {"Specification": adapter, "RuntimeConfig": one}, "no RuntimeConfig"),
        (
            sagemaker.create_model,
            {"ModelName": "m", "ExecutionRoleArn": ROLE, "PrimaryContainer": {"Environment": SMALL}},
            "Specify either Image or ModelPackageName",
        ),
        (
            sagemaker.create_model,
            {"ModelName": "tiny", "ExecutionRoleArn": ROLE, "PrimaryContainer": {"Image": IMAGE}},
            "Cannot create already existing model",
        ),
    ):
        code, message = refused(call, **arguments)
        assert (code, said in message) == ("ValidationException", True), message


def test_room_on_instances_bounds_copies(stand: Stand) -> None:
    """Four accelerators, two of them taken by the base."""
    stand.base("third", "shared", "tiny", copies=3, settle=False)
    found: dict[str, Any] = stand.settled("third")
    assert found["InferenceComponentStatus"] == "Failed"
    assert "not enough hardware resources" in found["FailureReason"]
    assert len(stand.workers()) == 2
    fetched = len(list((stand.work / "artifacts").iterdir()))
    stand.delete_component("third")
    assert len(list((stand.work / "artifacts").iterdir())) == fetched - 1, "its artifact goes with it"


def test_tags_and_pages(stand: Stand) -> None:
    sagemaker = stand.client("sagemaker")
    for number in range(5):
        name = f"paged-{number}"
        sagemaker.create_model(
            ModelName=name,
            ExecutionRoleArn=ROLE,
            PrimaryContainer={"Image": IMAGE},
            Tags=[{"Key": "number", "Value": str(number)}],
        )
    pages = sagemaker.get_paginator("list_models").paginate(
        NameContains="paged", SortBy="Name", SortOrder="Ascending", PaginationConfig={"PageSize": 2}
    )
    names = [[model["ModelName"] for model in page["Models"]] for page in pages]
    assert names == [["paged-0", "paged-1"], ["paged-2", "paged-3"], ["paged-4"]]
    arn = sagemaker.describe_model(ModelName="paged-3")["ModelArn"]
    sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "more", "Value": "yes"}])
    tags = sagemaker.list_tags(ResourceArn=arn)["Tags"]
    assert tags == [{"Key": "more", "Value": "yes"}, {"Key": "number", "Value": "3"}]
    sagemaker.delete_tags(ResourceArn=arn, TagKeys=["number"])
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "more", "Value": "yes"}]
    for number in range(5):
        sagemaker.delete_model(ModelName=f"paged-{number}")
    assert "pagination token" in refused(sagemaker.list_models, NextToken="bm9uZQ==")[1]
