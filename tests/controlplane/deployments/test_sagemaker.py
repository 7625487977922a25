"""Deployments on the local SageMaker, with real workers behind them: killed, drifted, updated, removed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError
from openai import OpenAI

from contracts.base_routes import adapter_component
from controlplane.adapters.aliases import alias_move
from controlplane.catalog.digests import digest_run
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.models import Copy, Deployment, DeploymentStep, Placement
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_remove, deployment_retry, deployment_update
from controlplane.routes.services import route_publish_now
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.conftest import ROOT
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import (
    Register,
    StatusRecorder,
    drive,
    removed,
    serving,
    unregister,
    version_put,
)
from tests.controlplane.deployments.dying import killed_at_each_call
from tests.gateway.conftest import GatewayProcess
from tests.sagemaker_local.stand import BUCKET, KEY, REGION, Stand, run_stand
from tests.waiting import eventually

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        location = {"LocationConstraint": REGION}
        running.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=location)
        yield running


@pytest.fixture(autouse=True)
def credentials(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Credentials in the process's environment, where AWS programs look. Empties the account afterwards."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY["secret_key"])
    yield
    for name in sorted(resources(stand)["components"], key=len, reverse=True):
        # Delete the resources that a failed test left. Adapters' names are the longer ones and go first.
        with contextlib.suppress(AssertionError, ClientError):
            stand.delete_component(name)


def pause() -> None:
    time.sleep(0.2)  # A round costs 0.1 CPU seconds: the account should have changed by the next.


def placed(deployment: Deployment) -> bool:
    rows = deployment.placements.all()
    return serving(deployment) and all(row.status == Placement.Status.READY for row in rows)


@pytest.mark.costly("real workers behind the local SageMaker")
def test_killed_between_any_two_calls_exactly_the_wanted_resources_are_there_and_then_none(
    stand: Stand, tiny: BaseModel, register: Register
) -> None:
    versions = [register("plain", "one"), register("all", "two")]
    deployment = deploy(stand, tiny)
    calls = killed_at_each_call(deployment, placed)
    found = resources(stand)
    adapters = sorted(adapter_component("gw-tiny", version.engine_name) for version in versions)
    assert found["components"] == sorted(["gw-tiny", *adapters])
    assert found["endpoints"] == ["gw-tiny"]
    assert len(found["models"]) == len(found["configs"]) == 1
    folder = f"graft/{deployment.target.owner}/adapters/tiny"
    archives = sorted(f"{folder}/{version.sha256}.tar.gz" for version in versions)
    assert [key for key in found["files"] if "/adapters/" in key] == archives
    assert len(calls) == len(set(calls)), "nothing was made twice"
    order = [call.partition(" ")[0] for call in calls if "put_checkpoint" not in call]
    assert order[:4] == [
        "create_model",
        "create_endpoint_config",
        "create_endpoint",
        "create_inference_component",
    ]
    assert order.count("create_inference_component") == 3
    assert order.count("put_archive") == 2
    told = {item["Key"]: item["Value"] for item in _tags(stand, adapters[0])}
    assert told["graftwork:deployment"] == "tiny"
    assert told["graftwork:tenant"] == "acme"

    deployment_remove(deployment=deployment)
    calls = killed_at_each_call(deployment, removed)
    assert resources(stand) == NOTHING
    order = [call.partition(" ")[0] for call in calls]
    assert order == [
        "delete_inference_component",
        "delete_inference_component",
        "delete_inference_component",
        "delete_endpoint",
        "delete_endpoint_config",
        "delete_model",
        "delete_objects",
    ]
    assert calls[2] == "delete_inference_component gw-tiny", "adapters before their base"
    assert stand.workers() == []


def _tags(stand: Stand, component: str) -> list[dict[str, str]]:
    client = stand.client("sagemaker")
    arn = client.describe_inference_component(InferenceComponentName=component)["InferenceComponentArn"]
    return list(client.list_tags(ResourceArn=arn)["Tags"])


@pytest.mark.costly("real workers behind the local SageMaker")
def test_what_others_change_is_mended_and_told(stand: Stand, tiny: BaseModel, register: Register) -> None:
    version = register("plain")
    deployment = drive(deploy(stand, tiny), placed, pause=pause)
    client, name = stand.client("sagemaker"), adapter_component("gw-tiny", version.engine_name)
    of_adapter = stand.ask("gw-tiny", name)
    assert of_adapter != stand.ask("gw-tiny", "gw-tiny")

    stand.delete_component(name)
    client.update_inference_component_runtime_config(
        InferenceComponentName="gw-tiny", DesiredRuntimeConfig={"CopyCount": 2}
    )
    stand.settled("gw-tiny")
    drive(deployment, lambda row: not serving(row), pause=pause)
    deployment = drive(deployment, placed, pause=pause)
    assert stand.settled("gw-tiny")["RuntimeConfig"]["DesiredCopyCount"] == 1
    assert stand.ask("gw-tiny", name) == of_adapter
    drift = deployment.steps.filter(action="drift", outcome=DeploymentStep.Outcome.NOTED)
    assert {step.cause for step in drift} == {"gw-tiny has 2 copies, not 1"}

    every = stand.upload("other.tar.gz", Path(str(register("all", "unplaced").uri).removeprefix("file://")))
    client.update_inference_component(
        InferenceComponentName=name, Specification={"Container": {"ArtifactUrl": every}}
    )
    stand.settled(name)
    assert stand.ask("gw-tiny", name) != of_adapter
    drive(deployment, lambda row: stand.ask("gw-tiny", name) == of_adapter, pause=pause)
    assert deployment.steps.filter(action="drift", cause__contains="another archive").exists()
    stand.client("s3").delete_object(Bucket=BUCKET, Key="other.tar.gz")
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
def test_two_adapters_deployed_called_through_the_gateway_updated_and_removed(
    stand: Stand, tiny: BaseModel, tenant: Tenant, register: Register, redis_url: str, tmp_path: Path
) -> None:
    register("plain", "one")
    second = register("all", "two")
    alias_move(adapter=second.adapter, name="prod", number=1)
    deployment = drive(deploy(stand, tiny), placed, pause=pause)
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        client = OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)

        def ask(model: str) -> str:
            answer = client.completions.create(
                model=model, prompt="hello", max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
            )
            return answer.choices[0].text

        answers = {model: ask(model) for model in ("tiny-base", "one", "two@prod")}
        assert len(set(answers.values())) == 3
        # A new version: placed beside the old one, then the alias moves; no request fails in between.
        newer = register("patterns", "two", 2)
        told = StatusRecorder(deployment)

        def meanwhile() -> None:
            assert ask("two@prod") == answers["two@prod"]
            told()

        drive(deployment, lambda row: placed(row) and row.placements.count() == 3, pause=meanwhile)
        alias_move(adapter=newer.adapter, name="prod", number=2)
        route_publish_now()
        eventually(lambda: ask("two@prod") != answers["two@prod"])
        text = ask("two@prod")
        assert text not in answers.values()
        unregister(second)
        drive(deployment, lambda row: placed(row) and row.placements.count() == 2, pause=told)
        told.says_that_it_serves("1 adapters are being placed")
        assert adapter_component("gw-tiny", second.engine_name) not in resources(stand)["components"]
        route_publish_now()
        assert ask("two@prod") == text
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
def test_two_bases_share_an_endpoint_with_adapters_preloaded_and_none(
    stand: Stand, tiny: BaseModel, tiny_model: Path, register: Register
) -> None:
    version = register("plain", "one")
    other = base_model_register(name="merged", source=tiny_model, served_name="merged")
    digest_run(base_model_id=other.pk)
    other.refresh_from_db()
    first = deploy(stand, tiny, hosting="preloaded", endpoint="both")
    fused = deploy(stand, other, name="merged", hosting="fused", endpoint="both")
    for deployment in (first, fused):
        drive(deployment, placed, pause=pause)
    found = resources(stand)
    assert found["endpoints"] == ["both"]
    assert found["components"] == ["gw-merged", "gw-tiny"]
    of_base = stand.ask("both", "gw-merged")
    of_adapter = stand.ask("both", "gw-tiny", adapters=version.engine_name)
    assert of_adapter != of_base == stand.ask("both", "gw-tiny")
    naming = {copy.component: copy.adapter_naming for copy in Copy.objects.all()}
    assert naming == {"gw-tiny": "name", "gw-merged": "name"}

    # Another adapter is another archive, hence another model: the base rolls on to it.
    second, told = register("all", "two"), StatusRecorder(first)
    drive(first, lambda row: placed(row) and row.placements.count() == 2, pause=told)
    told.says_that_it_serves("2 adapters are being placed")
    assert stand.ask("both", "gw-tiny", adapters=second.engine_name) not in (of_base, of_adapter)
    assert stand.ask("both", "gw-tiny", adapters=version.engine_name) == of_adapter
    assert len([key for key in resources(stand)["files"] if key.endswith("adapters.tar.gz")]) == 1
    assert len(resources(stand)["models"]) == 2

    deployment_remove(deployment=first)
    drive(first, removed, pause=pause)
    left = resources(stand)
    assert (left["endpoints"], left["components"]) == (["both"], ["gw-merged"]), "it goes with the last"
    assert stand.ask("both", "gw-merged") == of_base
    deployment_remove(deployment=fused)
    drive(fused, removed, pause=pause)
    assert resources(stand) == NOTHING


def test_throttled_it_waits_and_then_goes_on(stand: Stand, tiny: BaseModel) -> None:
    deployment = deploy(stand, tiny)
    # Each run tries five times before it leaves the rest to the next one.
    stand.put("faults", [{"kind": "throttle", "operation": "*", "count": 15}])
    try:
        for failures in (1, 2, 3):
            deployment_reconcile(deployment_id=deployment.pk)
            deployment.refresh_from_db()
            assert deployment.failures == failures
        assert "AWS throttled the call;" in deployment.reason
        assert deployment.status == Deployment.Status.WORKING
        assert resources(stand) == NOTHING
    finally:
        stand.put("faults", [])
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)


def test_a_resource_of_somebody_elses_is_left_alone(stand: Stand, tiny: BaseModel) -> None:
    stand.endpoint("gw-tiny")
    deployment = deploy(stand, tiny)
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert deployment.status == Deployment.Status.FAILED
    assert "remove it, or name the deployment otherwise" in deployment.reason
    client = stand.client("sagemaker")
    client.delete_endpoint(EndpointName="gw-tiny")
    client.get_waiter("endpoint_deleted").wait(
        EndpointName="gw-tiny", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
    )
    client.delete_endpoint_config(EndpointConfigName="gw-tiny")
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)


def test_a_checkpoint_is_stored_once_its_content_is_known(stand: Stand, tiny: BaseModel) -> None:
    BaseModel.objects.filter(pk=tiny.pk).update(checkpoint_sha256="")
    tiny.refresh_from_db()
    deployment = deploy(stand, tiny)
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert deployment.status == Deployment.Status.WORKING
    assert "have them read again on its page" in deployment.reason
    assert resources(stand) == NOTHING
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)


@pytest.mark.costly("real workers behind the local SageMaker")
def test_an_update_that_is_rolled_back_is_told_and_not_repeated(stand: Stand, tiny: BaseModel) -> None:
    deployment = drive(deploy(stand, tiny), placed, pause=pause)
    of_base = stand.ask("gw-tiny", "gw-tiny")
    stand.put("faults", [{"kind": "start_failure", "component": "gw-tiny", "count": 1}])
    deployment_update(deployment=deployment, options={"max_rolling_batch_size": 2})
    drive(deployment, lambda row: "took the update of gw-tiny back" in row.reason, pause=pause)
    assert deployment.status == Deployment.Status.DEGRADED
    assert deployment.copies.count() == 1
    assert stand.ask("gw-tiny", "gw-tiny") == of_base, "what was there serves on"
    for _ in range(3):
        deployment_reconcile(deployment_id=deployment.pk)
    assert deployment.steps.filter(action="update_inference_component").count() == 1
    deployment_retry(deployment=deployment)
    drive(deployment, lambda row: placed(row) and row.observed_generation == row.generation, pause=pause)
    assert deployment.steps.filter(action="update_inference_component").count() == 2
    assert len(resources(stand)["models"]) == 1
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.slow
@pytest.mark.model
def test_the_demo_model_with_two_adapters_end_to_end(
    stand: Stand, tenant: Tenant, demo_model: Path, db: None, redis_url: str, tmp_path: Path
) -> None:
    """SmolLM2-135M as a customer has it: two trained adapters, asked through the gateway, one updated."""
    base = base_model_register(name="smollm2", source=demo_model, served_name="smollm2")
    digest_run(base_model_id=base.pk)
    base.refresh_from_db()
    adapters = ROOT / "demo" / "adapters"
    version_put(tenant, base, adapters / "pirate", "voice")
    version_put(tenant, base, adapters / "strict-json", "answers")
    small = {"GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.3", "GRAFTWORK_WORKER_FLAG_NUM_THREADS": "2"}
    options = {"max_rolling_batch_size": 4, "max_model_len": 1024}
    deployment = deploy(stand, base, name="smollm2", environment=small, options=options)
    drive(deployment, placed, pause=pause)
    assert any("weights: 0.25 GiB" in reason for reason in deployment.compute["reasons"])
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        client = OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)

        def ask(model: str) -> str:
            answer = client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "Where can I buy bread?"}],
                max_tokens=24,
                temperature=0,
            )
            return answer.choices[0].message.content or ""

        answers = [ask(model) for model in ("smollm2", "voice", "answers")]
        assert len(set(answers)) == 3
        version_put(tenant, base, adapters / "shakespeare", "voice", 2)
        drive(deployment, lambda row: placed(row) and row.placements.count() == 3, pause=pause)
        route_publish_now()
        eventually(lambda: ask("voice") != answers[1])
        assert ask("voice@v1") == answers[1]
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
    assert stand.workers() == []


@contextlib.contextmanager
def gateway_of(redis_url: str, folder: Path) -> Iterator[GatewayProcess]:
    """A gateway with the account's credentials, at the routes as they are."""
    route_publish_now()
    environ = {"AWS_ACCESS_KEY_ID": KEY["access_key"], "AWS_SECRET_ACCESS_KEY": KEY["secret_key"]}
    gateway = GatewayProcess(redis_url, folder / "wal", folder / "gateway.log", environ=environ)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


@pytest.mark.costly("real workers behind the local SageMaker")
@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_copies_speculate_as_the_options_say(
    stand: Stand, tiny: BaseModel, register: Register, method: str
) -> None:
    options: dict[str, Any] = {"max_rolling_batch_size": 4, "speculation": method, "speculation_tokens": 3}
    if method == "draft":
        for file in Path(tiny.source).iterdir():
            stand.client("s3").upload_file(str(file), BUCKET, f"draft/{file.name}")
        options["draft_model"] = f"s3://{BUCKET}/draft"
    register("plain")
    deployment = drive(deploy(stand, tiny, options=options), placed, pause=pause)
    (pid,) = stand.workers()
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    (port,) = (line.partition("=")[2] for line in variables if line.startswith("SAGEMAKER_BIND_TO_PORT="))
    health = httpx.get(f"http://127.0.0.1:{port}/health").json()
    assert (health["speculation"], stand.ask("gw-tiny", "gw-tiny") != "") == (method, True)
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
