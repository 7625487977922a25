"""Deployments by REST and on the operator's pages: valid and refused input, and their output."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client

from controlplane.billing.reports.instance_prices import instance_price_set
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.endpoints import copies_sync
from controlplane.deployments.desired import desired_of
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import Endpoint
from controlplane.deployments.provisioners.local.engines import WORKER
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.services import user_create
from tests.controlplane.deployments.conftest import orphan

pytestmark = pytest.mark.django_db
ROLE = "arn:aws:iam::123456789012:role/endpoints"
CLOUD: dict[str, Any] = {
    "kind": "sagemaker",
    "region": "eu-central-1",
    "role_arn": ROLE,
    "store": "s3://models/graft",
}


@pytest.fixture
def staff() -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


@pytest.fixture
def cloud() -> Target:
    return target_create(name="cloud", **CLOUD)


def post(staff: Client, path: str, body: dict[str, Any]) -> Any:
    return staff.post(f"/api/v1/{path}", body, content_type="application/json")


def create(staff: Client, tiny: BaseModel, **values: Any) -> Any:
    body = {"name": "llama", "target": "cloud", "base_model": tiny.name, "instance_type": "ml.g6e.2xlarge"}
    return post(staff, "deployments", body | values)


def test_what_is_wanted_is_shown_with_its_reasons(staff: Client, cloud: Target, tiny: BaseModel) -> None:
    answer = create(staff, tiny, options={"max_loras": 8}, max_copies=4)
    assert answer.status_code == 201, answer.content
    told = answer.json()
    assert (told["status"], told["hosting"], told["generation"]) == ("pending", "components", 1)
    assert (told["image"], told["image_family"]) == ("lmi-0.38.0", "lmi")
    assert told["compute"]["accelerators"] == 1
    assert any("KV cache: 32 sequences of 512 tokens" in reason for reason in told["compute"]["reasons"])
    assert any("adapters: 8 in device memory" in reason for reason in told["compute"]["reasons"])
    steps = staff.get("/api/v1/deployments/llama/steps").json()["results"]
    assert [(step["action"], step["actor"]) for step in steps] == [("create", "s@graft.test")]
    assert AuditRecord.objects.filter(action="deployment.create", target_name="llama").exists()


def test_a_change_counts_generations_and_recomputes(staff: Client, cloud: Target, tiny: BaseModel) -> None:
    first = create(staff, tiny)
    tag, path = staff.get("/api/v1/deployments/llama")["ETag"], "/api/v1/deployments/llama"
    headers = {"If-Match": tag}
    body = {"options": {"max_rolling_batch_size": 256}}
    answer = staff.patch(path, body, content_type="application/json", headers=headers)
    assert answer.status_code == 200, answer.content
    assert answer.json()["generation"] == 2
    assert answer.json()["compute"] != first.json()["compute"]
    assert staff.patch(path, body, content_type="application/json", headers=headers).status_code == 412
    same = staff.patch(path, body, content_type="application/json")
    assert same.json()["generation"] == 2, "nothing changed"
    by_hand = {"compute": {"accelerators": 1, "memory_mb": 9000}}
    told = staff.patch(path, by_hand, content_type="application/json").json()["compute"]
    assert told == {"accelerators": 1.0, "memory_mb": 9000.0}


def test_removal_is_asked_for_once_and_ends_changes(staff: Client, cloud: Target, tiny: BaseModel) -> None:
    create(staff, tiny)
    for _ in range(2):
        answer = staff.delete("/api/v1/deployments/llama")
        assert (answer.status_code, answer.json()["status"]) == (202, "removing")
    path = "/api/v1/deployments/llama"
    assert staff.patch(path, {"min_copies": 0}, content_type="application/json").status_code == 409
    assert staff.delete("/api/v1/targets/cloud").status_code == 409, "somebody has to remove it"
    assert AuditRecord.objects.filter(action="deployment.remove").count() == 1


@pytest.mark.parametrize(
    ("values", "attr", "words"),
    [
        ({"name": "Llama"}, "name", "lower-case"),
        ({"name": "llama-0123abcd"}, "name", "hexadecimal"),
        ({"hosting": "api"}, "hosting", "must be one of components, preloaded, fused, on_demand"),
        ({"instance_type": "ml.z1.large"}, "instance_type", "is not known"),
        ({"options": {"max_cpu_loras": 100000, "max_lora_rank": 512}}, "instance_type", "host memory"),
        ({"image": "lmi-1"}, "image", "is not an image"),
        ({"image": "tgi-3.3.6"}, "hosting", "loads adapters only at its start"),
        ({"image": "tensorrtllm-0.33.0"}, "options.enable_lora", "is not supported by"),
        ({"options": {"max_lora_rank": 7}}, "options.max_lora_rank", "must be one of 1, 8"),
        ({"min_copies": 3, "max_copies": 2}, "min_copies", "min_copies <= max_copies"),
        ({"min_instances": 3}, "min_instances", "min_instances <= max_instances"),
        ({"environment": {"HF_TOKEN": "hf_x"}}, "environment", "looks like a secret"),
        ({"environment": {"PRIVATE_KEY": "x"}}, "environment", "looks like a secret"),
        ({"endpoint": "gw-tiny"}, "endpoint", "must not start with gw-"),
        ({"endpoint": "-x"}, "endpoint", "letters, digits"),
        ({"compute": {"accelerators": 1}}, "compute.memory_mb", "at least 128"),
        ({"hosting": "on_demand"}, "hosting", "family worker"),
    ],
)
def test_what_is_wrong_is_named(
    staff: Client, cloud: Target, tiny: BaseModel, values: dict[str, Any], attr: str, words: str
) -> None:
    answer = create(staff, tiny, **values)
    assert answer.status_code == 400, answer.content
    (error,) = answer.json()["errors"]
    assert error["attr"] == attr
    assert words in error["detail"]
    assert not Deployment.objects.exists()


def test_counts_of_tokens_are_no_secrets(staff: Client, cloud: Target, tiny: BaseModel) -> None:
    names = ("MAX_TOTAL_TOKENS", "MAX_INPUT_TOKENS", "TOKENIZERS_PARALLELISM")
    answer = create(staff, tiny, environment=dict.fromkeys(names, "1"))
    assert answer.status_code == 201, answer.content


def test_variables_reach_workers_on_a_host_or_are_refused(staff: Client, tiny: BaseModel) -> None:
    target_create(name="here", kind="local")
    body = {"name": "tiny", "target": "here", "base_model": tiny.name}
    unread = body | {"environment": {"TOKENIZERS_PARALLELISM": "1"}}
    refused = staff.post("/api/v1/deployments", unread, "application/json")
    assert (refused.status_code, "TOKENIZERS_PARALLELISM has no effect on workers" in refused.text) == (
        400,
        True,
    )
    told = {"GRAFTWORK_TUNED_CONFIG_DIR": "/configs", "OMP_NUM_THREADS": "2"}
    environment = {**told, "GRAFTWORK_WORKER_FLAG_DTYPE": "float32"}
    answer = staff.post("/api/v1/deployments", body | {"environment": environment}, "application/json")
    assert answer.status_code == 201, answer.content
    assert WORKER.variables(desired_of(Deployment.objects.get())) == told


def test_a_shared_endpoint_is_of_the_same_instances(staff: Client, cloud: Target, tiny: BaseModel) -> None:
    assert create(staff, tiny, endpoint="both").status_code == 201
    assert create(staff, tiny, name="second", endpoint="both").status_code == 201
    other = create(staff, tiny, name="third", endpoint="both", instance_type="ml.g6e.4xlarge")
    assert other.status_code == 409
    assert "shared with llama, whose instance_type is ml.g6e.2xlarge" in other.json()["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("values", "attr"),
    [
        ({**CLOUD, "region": "moon"}, "region"),
        ({**CLOUD, "role_arn": "role"}, "role_arn"),
        ({**CLOUD, "assume_role_arn": "role"}, "assume_role_arn"),
        ({**CLOUD, "store": "/tmp"}, "store"),
        ({**CLOUD, "endpoint_url": "http://u:p@h"}, "endpoint_url"),
        ({**CLOUD, "urls": ["http://x"]}, "urls"),
        ({"kind": "openai_http"}, "urls"),
        ({"kind": "openai_http", "urls": ["ftp://x"]}, "urls"),
        ({"kind": "local", "region": "eu-central-1"}, "region"),
        ({"kind": "local", "address": "a b"}, "address"),
    ],
)
def test_a_target_takes_its_own_fields(staff: Client, values: dict[str, Any], attr: str) -> None:
    answer = post(staff, "targets", {"name": "t", **values})
    assert answer.status_code == 400, answer.content
    assert answer.json()["errors"][0]["attr"] == attr


def test_a_deployments_copy_is_not_taken_by_hand(staff: Client, tiny: BaseModel) -> None:
    target = target_create(name="vllm", kind="openai_http", urls=["http://v:1", "http://v:2"])
    deployment = deployment_create(name="tiny", target=target, base_model=tiny)
    by_hand = post(
        staff, "copies", {"base_model": tiny.name, "kind": "openai_http", "url": "http://v:2"}
    ).json()
    endpoints = [Endpoint("openai_http", "http://v:1"), Endpoint("openai_http", "http://v:2")]
    copies_sync(deployment=deployment, endpoints=endpoints)
    (own,) = deployment.copies.all()
    assert own.url == "http://v:1", "the other is whose it was"
    answer = staff.delete(f"/api/v1/copies/{own.pk}")
    assert answer.status_code == 409
    assert "copy of deployment tiny" in answer.json()["errors"][0]["detail"]
    assert copies_sync(deployment=deployment, endpoints=[])
    assert [copy.pk for copy in tiny.copies.all()] == [by_hand["id"]]


def test_pages_create_show_change_and_remove(staff: Client, cloud: Target, tiny: BaseModel) -> None:
    form = {
        "name": "llama",
        "target": "cloud",
        "base_model": tiny.name,
        "instance_type": "ml.g6e.2xlarge",
        "options-max_loras": "8",
        "options-enable_lora": "true",
        "options-gpu_memory_utilization": "0.8",
    }
    wrong = staff.post("/staff/deployments/new", form | {"instance_type": "ml.z1.large"})
    assert wrong.status_code == 422
    assert "set compute requirements manually" in wrong.content.decode()
    assert 'name="options-max_loras" maxlength="500" placeholder="4" value="8"' in wrong.content.decode()
    assert "<option selected>true</option>" in wrong.content.decode()
    by_hand = {"instance_type": "ml.z1.large", "name": "own", "compute-cpus": "2", "compute-memory_mb": "64"}
    short = staff.post("/staff/deployments/new", form | by_hand).content.decode()
    assert 'id="error-compute-memory_mb"' in short
    assert "compute.memory_mb must be at least 128" in short
    answer = staff.post("/staff/deployments/new", form | by_hand | {"compute-memory_mb": "4096"})
    assert answer.status_code == 302
    own = Deployment.objects.get(name="own")
    assert own.compute == {"cpus": 2, "memory_mb": 4096}
    own.delete()
    bad_number = staff.post("/staff/deployments/new", form | {"options-max_loras": "many"})
    assert "max_loras must be of type int" in bad_number.content.decode()
    answer = staff.post("/staff/deployments/new", form)
    assert (answer.status_code, answer["Location"]) == (302, "/staff/deployments/llama/")
    deployment = Deployment.objects.get()
    assert deployment.options == {"max_loras": 8, "enable_lora": True, "gpu_memory_utilization": 0.8}
    page = staff.get("/staff/deployments/llama/").content.decode()
    assert "KV cache: 32 sequences" in page
    assert "every 2s" in page, "asked for again while it is not settled"
    staff.post(
        "/staff/deployments/llama/change", {"min_copies": "0", "max_copies": "3", "adapter_scope": "named"}
    )
    deployment.refresh_from_db()
    assert (deployment.min_copies, deployment.max_copies, deployment.adapter_scope) == (0, 3, "named")
    bad = staff.post("/staff/deployments/llama/change", {"min_copies": "9", "max_copies": "3"})
    assert bad.status_code == 422
    staff.post("/staff/deployments/llama/remove")
    assert "removing" in staff.get("/staff/deployments/").content.decode().lower()
    orphan(deployment)
    assert staff.get("/staff/deployments/llama/status").status_code == 200


def test_pages_tell_the_price_of_an_instance_and_of_a_copy(
    staff: Client, cloud: Target, tiny: BaseModel
) -> None:
    deployment_create(name="llama", target=cloud, base_model=tiny, instance_type="ml.g6e.2xlarge")
    assert 'data-testid="copy-cost"' not in staff.get("/staff/deployments/llama/").content.decode()
    for region, hour_nano in (("eu-central-1", 3 * 10**9), ("us-east-1", 2 * 10**9)):
        instance_price_set(
            instance_type="ml.g6e.2xlarge",
            region=region,
            effective_from=dt.date(2026, 1, 2),
            hour_nano=hour_nano,
            source="a contract",
        )
    page = staff.get("/staff/deployments/llama/").content.decode()
    for text in ("1 copy per instance: $3.00", "in eu-central-1, price from 2 Jan 2026: a contract"):
        assert text in page
    assert "$2.00 per hour in us-east-1" in staff.get("/staff/deployments/new").content.decode()


def test_an_image_that_a_region_lacks_is_refused(staff: Client, tiny: BaseModel) -> None:
    target_create(name="cloud", **CLOUD | {"region": "eu-central-2"})
    answer = create(staff, tiny, image="triton-24.09", hosting="fused")
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["attr"] == "image"
    assert "AWS does not publish triton-24.09 in eu-central-2" in error["detail"]
    assert "tgi-3.3.6" in error["detail"]
    assert "triton-25.09" not in error["detail"], "it is published there, and serves no language model"
    assert create(staff, tiny, image="tgi-3.3.6", hosting="fused").status_code == 201


def test_the_list_tells_copies_that_serve(staff: Client, cloud: Target, tiny: BaseModel) -> None:
    """On SageMaker one row of the route table stands for all copies."""
    deployment = deployment_create(
        name="llama", target=cloud, base_model=tiny, instance_type="ml.g6e.2xlarge", max_copies=9
    )
    deployment.resources = [
        {"kind": "endpoint", "name": "gw-llama", "state": "ready", "has": {"instances": "4"}},
        {"kind": "base component", "name": "gw-llama", "state": "ready", "has": {"copies": "7"}},
    ]
    deployment.save()
    assert 'data-label="Copies">7</td>' in staff.get("/staff/deployments/").content.decode()
    assert "4 instances" in staff.get("/staff/deployments/llama/").content.decode()


def test_pages_of_targets(staff: Client) -> None:
    wrong = staff.post("/staff/targets/", {"name": "vllm", "kind": "openai_http"})
    assert "urls must have 1 to 64 entries" in wrong.content.decode()
    values = {"name": "vllm", "kind": "openai_http", "urls": "http://a:1 http://b:2", "token": "sk-of-vllm"}
    assert "sk-of-vllm" not in staff.post("/staff/targets/", values | {"urls": "ftp://a"}).content.decode()
    staff.post("/staff/targets/", values)
    made = Target.objects.get(name="vllm")
    assert made.credentials.token == "sk-of-vllm"
    assert "sk-of-vllm" not in made.sealed_credentials
    assert "sk-of-vllm" not in staff.get("/staff/targets/").content.decode()
    assert Target.objects.get().urls == ["http://a:1", "http://b:2"]
    assert "http://b:2" in staff.get("/staff/targets/").content.decode()
    staff.post("/staff/targets/vllm/remove")
    assert not Target.objects.exists()


def test_the_target_form_keeps_values_and_sends_those_of_the_chosen_kind(staff: Client) -> None:
    page = staff.get("/staff/targets/").content.decode()
    assert 'value="local" data-kind="local" checked' in page
    assert '<dialog class="dialog dialog-wide" id="add-target" aria-labelledby="add-target-title">' in page
    entered = {"name": "Here", "host": "gpu-1", "region": "eu-west-1", "token": "s3cret"}
    wrong = staff.post("/staff/targets/", {"kind": "local", **entered})
    assert wrong.status_code == 422
    page = wrong.content.decode()
    assert 'aria-labelledby="add-target-title" open>' in page
    for value in ("Here", "gpu-1", "eu-west-1"):
        assert f'value="{value}"' in page
    assert "s3cret" not in page
    assert re.search(r'id="error-target-name"[^>]*>.*lower-case letters', page)
    assert staff.post("/staff/targets/", {"kind": "local", **entered, "name": "here"}).status_code == 302
    made = Target.objects.get()
    assert (made.kind, made.host, made.region, made.sealed_credentials) == ("local", "gpu-1", "", "")
    assert staff.post("/staff/targets/", {"kind": "cloud", "name": "x"}).status_code == 422


def test_the_deployment_form_sends_what_the_targets_kind_takes(staff: Client, tiny: BaseModel) -> None:
    target_create(name="vllm", kind="openai_http", urls=["http://a:1"])
    page = staff.get("/staff/deployments/new").content.decode()
    assert '<option value="vllm" data-kind="openai_http">' in page
    assert 'name="min_copies" inputmode="numeric" maxlength="4" placeholder="1" value="1"' in page
    form = {"name": "tiny", "target": "vllm", "base_model": tiny.name, "min_copies": "4", "max_copies": "4"}
    hidden = {"instance_type": "ml.g5.xlarge", "endpoint": "shared", "options-max_loras": "8"}
    assert staff.post("/staff/deployments/new", form | hidden).status_code == 302
    made = Deployment.objects.get()
    assert (made.instance_type, made.endpoint, made.options, made.min_copies) == ("", "", {}, 1)


def test_copies_have_one_form_which_keeps_what_was_entered(
    staff: Client, cloud: Target, tiny: BaseModel
) -> None:
    deployment_create(name="llama", target=cloud, base_model=tiny, instance_type="ml.g6e.2xlarge")
    url = "/staff/deployments/llama"
    assert staff.post(f"{url}/scaling", {"metric": "concurrency", "target": "4"}).status_code == 302
    staff.post(f"{url}/change", {"min_copies": "2", "max_copies": "5"})
    assert staff.post(f"{url}/scaling", {"metric": "concurrency", "target": "9"}).status_code == 302
    page = staff.get(f"{url}/").content.decode()
    assert len(re.findall(r'name="min_copies"', page)) == len(re.findall(r'name="max_copies"', page)) == 1
    assert "2 to 5 copies now" in page
    wrong = staff.post(f"{url}/change", {"min_copies": "many", "max_copies": "7"}).content.decode()
    assert 'name="min_copies" value="many"' in wrong
    assert 'name="max_copies" value="7"' in wrong
    assert re.search(r'id="error-min_copies"[^>]*>.*valid integer', wrong)
