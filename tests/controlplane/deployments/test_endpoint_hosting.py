"""Deployments without inference components: the model is the endpoint's variant, one instance per copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.containers.images import IMAGES
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.models import Copy, Deployment
from controlplane.deployments.rollouts.services import deployment_rollout_start
from controlplane.deployments.services import (
    deployment_create,
    deployment_remove,
    deployment_update,
    scaling_set,
)
from controlplane.deployments.targets.services import target_create
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import drive, removed, serving
from tests.controlplane.deployments.dying import killed_at_each_call
from tests.controlplane.deployments.test_autoscaling import NIGHT, registered
from tests.controlplane.deployments.test_sagemaker import credentials, gateway_of, pause, stand
from tests.sagemaker_local.stand import BUCKET, REGION, ROLE, SMALL, Stand

__all__ = ("credentials", "stand")
pytestmark = pytest.mark.django_db


def settled(deployment: Deployment) -> bool:
    return serving(deployment) and deployment.observed_generation == deployment.generation


def variant(stand: Stand) -> dict[str, Any]:
    """The endpoint's variant, as the account describes it."""
    (found,) = stand.client("sagemaker").describe_endpoint(EndpointName="gw-tiny")["ProductionVariants"]
    return dict(found)


@pytest.mark.costly("real workers behind the local SageMaker")
def test_killed_between_any_two_calls_the_model_is_the_endpoints_variant_and_then_gone(
    stand: Stand, tiny: BaseModel
) -> None:
    deployment = deploy(stand, tiny, hosting="endpoint")
    calls = killed_at_each_call(deployment, settled)
    assert len(calls) == len(set(calls)), "nothing was made twice"
    order = [call.partition(" ")[0] for call in calls if "put_checkpoint" not in call]
    assert order == ["create_model", "create_endpoint_config", "create_endpoint"]
    client = stand.client("sagemaker")
    (model,), (config,) = resources(stand)["models"], resources(stand)["configs"]
    (made,) = client.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"]
    assert (made["ModelName"], made["InitialInstanceCount"]) == (model, 1)
    assert "ManagedInstanceScaling" not in made
    container = client.describe_model(ModelName=model)["PrimaryContainer"]
    assert container["Environment"]["OPTION_MODEL_ID"] == "/opt/ml/model"
    assert container["Environment"].items() >= SMALL.items()
    assert container["ModelDataSource"]["S3DataSource"]["S3Uri"].endswith("/")
    assert resources(stand)["components"] == []
    assert stand.ask("gw-tiny")
    copy = Copy.objects.get()
    assert (copy.endpoint, copy.component, copy.adapter_naming) == ("gw-tiny", "", "name")
    deployment_remove(deployment=deployment)
    order = [call.partition(" ")[0] for call in killed_at_each_call(deployment, removed)]
    assert order == ["delete_endpoint", "delete_endpoint_config", "delete_model", "delete_objects"]
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
def test_copies_are_instances_that_an_update_and_a_rollout_keep(stand: Stand, tiny: BaseModel) -> None:
    deployment = drive(deploy(stand, tiny, hosting="endpoint"), settled, pause=pause)
    first = resources(stand)["configs"]
    deployment_update(deployment=deployment, min_copies=2, max_copies=2)
    drive(deployment, settled, pause=pause)
    assert (variant(stand)["CurrentInstanceCount"], resources(stand)["configs"]) == (2, first)
    rollout = deployment_rollout_start(
        deployment=deployment, change={"environment": SMALL | {"OMP_WAIT_POLICY": "passive"}}
    )
    drive(deployment, lambda row: not row.rollouts.filter(status="running").exists(), pause=pause)
    rollout.refresh_from_db()
    assert rollout.status == "completed", rollout.reason
    assert deployment.steps.filter(action="update_endpoint", resource="gw-tiny").count() == 1
    told = stand.client("sagemaker").describe_endpoint(EndpointName="gw-tiny")["LastDeploymentConfig"]
    assert told["RollingUpdatePolicy"]["MaximumBatchSize"] == {"Type": "INSTANCE_COUNT", "Value": 1}
    assert variant(stand)["CurrentInstanceCount"] == 2
    drive(deployment, settled, pause=pause)
    assert len(resources(stand)["configs"]) == len(resources(stand)["models"]) == 1
    assert resources(stand)["configs"] != first
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
def test_a_policy_scales_the_variant(stand: Stand, tiny: BaseModel) -> None:
    deployment = drive(deploy(stand, tiny, hosting="endpoint", max_copies=3), settled, pause=pause)
    scaling_set(deployment=deployment, target=4.0)
    drive(deployment, settled, pause=pause)
    client = stand.client("application-autoscaling")
    assert registered(client)["targets"] == [("endpoint/gw-tiny/variant/main", 1, 3)]
    (policy,) = client.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    config = policy["TargetTrackingScalingPolicyConfiguration"]
    assert policy["ScalableDimension"] == "sagemaker:variant:DesiredInstanceCount"
    assert config["PredefinedMetricSpecification"] == {
        "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    }
    alarm = stand.client("cloudwatch").describe_alarms(AlarmNames=[policy["Alarms"][0]["AlarmName"]])
    assert alarm["MetricAlarms"][0]["Dimensions"] == [
        {"Name": "EndpointName", "Value": "gw-tiny"},
        {"Name": "VariantName", "Value": "main"},
    ]
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert (resources(stand), registered(client)["targets"]) == (NOTHING, [])


@pytest.mark.costly("a real worker behind the local SageMaker, and a gateway")
def test_sagemakers_draft_model_speculates_and_the_gateway_calls_the_endpoint(
    stand: Stand, tiny: BaseModel, tenant: Tenant, redis_url: str, tmp_path: Path
) -> None:
    for file in Path(tiny.source).iterdir():
        stand.client("s3").upload_file(str(file), BUCKET, f"draft/{file.name}")
    options = {"speculation": "sagemaker", "draft_model": f"s3://{BUCKET}/draft", "accept_eula": True}
    deployment = drive(deploy(stand, tiny, hosting="endpoint", options=options), settled, pause=pause)
    (model,) = resources(stand)["models"]
    container = stand.client("sagemaker").describe_model(ModelName=model)["PrimaryContainer"]
    (source,) = container["AdditionalModelDataSources"]
    assert source["S3DataSource"]["ModelAccessConfig"] == {"AcceptEula": True}
    (pid,) = stand.workers()
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    (port,) = (line.partition("=")[2] for line in variables if line.startswith("SAGEMAKER_BIND_TO_PORT="))
    assert httpx.get(f"http://127.0.0.1:{port}/health").json()["speculation"] == "draft"
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        answer = httpx.post(
            f"{gateway.url}/v1/completions",
            json={"model": tiny.name, "prompt": "hello", "max_tokens": 4},
            headers={"authorization": f"Bearer {key}"},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] > 0
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    stand.client("s3").delete_objects(
        Bucket=BUCKET,
        Delete={"Objects": [{"Key": f"draft/{file.name}"} for file in Path(tiny.source).iterdir()]},
    )
    assert resources(stand) == NOTHING


@pytest.fixture
def unreached(db: None, tiny: BaseModel) -> Any:
    """Creates deployments in a target that no test calls."""
    target = target_create(
        name="cloud", kind="sagemaker", region=REGION, role_arn=ROLE, store="s3://artifacts/graft"
    )

    def make(**values: Any) -> Deployment:
        wanted: dict[str, Any] = {"hosting": "endpoint", "instance_type": "ml.g5.12xlarge"}
        return deployment_create(name="tiny", target=target, base_model=tiny, **(wanted | values))

    return make


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"min_instances": 0}, "min_instances", "set min_copies"),
        ({"max_instances": 4}, "max_instances", "set max_copies"),
        ({"endpoint": "shared"}, "endpoint", "serves one model alone"),
        ({"compute": {"memory_mb": 1024}}, "compute", "has its whole instance"),
        ({"min_copies": 0}, "min_copies", "no scale to zero"),
        ({"options": {"max_loras": 8}}, "options.max_loras", "no adapters are served"),
        ({"options": {"max_lora_rank": 64}}, "options.max_lora_rank", "no adapters are served"),
    ],
)
def test_fields_of_components_are_refused_by_name(
    unreached: Any, values: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        unreached(**values)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"from_zero": 2}, "from_zero"),
        ({"release": "CONSOLIDATION"}, "release"),
        ({"schedule": [NIGHT]}, "min_copies"),
    ],
)
def test_policies_of_components_are_refused_by_name(
    unreached: Any, policy: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError, match="hosting endpoint") as caught:
        scaling_set(deployment=unreached(), target=4.0, **policy)
    assert caught.value.field == field


def test_a_copy_has_all_of_its_instances_accelerators(unreached: Any) -> None:
    compute = unreached().compute
    assert (compute["accelerators"], compute["copies_per_instance"]) == (4, 1)
    assert any("tensor_parallel takes 4 GPUs" in text for text in compute["reasons"])


def test_adapters_are_those_in_the_models_own_files() -> None:
    image = IMAGES["lmi-0.38.0"]
    options = LmiOptions.from_values({"enable_lora": True, "max_loras": 8}, image, hosting="endpoint")
    assert options.environment(image, accelerators=1)["OPTION_MAX_LORAS"] == "8"
    without = LmiOptions.from_values({}, image, hosting="endpoint")
    assert "OPTION_ENABLE_LORA" not in without.environment(image, accelerators=1)


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"speculation": "sagemaker", "draft_model": "s3://bucket/draft/"}, "speculation"),
        ({"accept_eula": True}, "accept_eula"),
    ],
)
def test_sagemakers_draft_model_and_license_are_for_endpoints_alone(
    values: dict[str, Any], option: str
) -> None:
    image = IMAGES["lmi-0.38.0"]
    with pytest.raises(InvalidInputError, match="valid only in hosting endpoint") as caught:
        LmiOptions.from_values(values, image, hosting="components")
    assert caught.value.field == f"options.{option}"
    LmiOptions.from_values(values, image, hosting="endpoint")


@pytest.mark.parametrize("hosting", ["components", "endpoint"])
def test_a_stated_concurrency_sizes_the_kv_cache_and_is_kept(unreached: Any, hosting: str) -> None:
    row = unreached(hosting=hosting, compute={"concurrency": 2})
    assert row.compute["concurrency"] == 2
    assert any(
        "2 sequences (compute.concurrency, of 32 that may run)" in text for text in row.compute["reasons"]
    )
    changed = deployment_update(deployment=row, options={"max_model_len": 32})
    assert changed.compute["concurrency"] == 2


@pytest.mark.parametrize(
    ("compute", "field", "says"),
    [
        ({"concurrency": 33}, "compute.concurrency", "up to max_rolling_batch_size, which is 32"),
        ({"concurrency": 1.5}, "compute.concurrency", "a whole number"),
        ({"concurrency": 2, "memory_mb": 4096}, "compute.concurrency", "omit the others"),
        ({"gpus": 2}, "compute.gpus", "does not exist; existing fields"),
    ],
)
def test_compute_that_has_no_effect_is_refused_by_name(
    unreached: Any, compute: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        unreached(hosting="components", compute=compute)
    assert caught.value.field == field
