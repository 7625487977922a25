"""SageMaker's AI benchmarks and recommendations on the local SageMaker: start, status, stop, results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from contracts.adapters.reference import ADAPTER_FILES
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.targets.services import target_create
from controlplane.errors import UnavailableError
from controlplane.optimization.claims import LEASE
from controlplane.optimization.models import Assessment, PromptSet
from controlplane.optimization.sagemaker import assessment_poll as polls
from controlplane.optimization.sagemaker.assessment_poll import assessment_poll
from controlplane.optimization.sagemaker.assessment_request import assessment_request
from controlplane.optimization.services import work_cancel
from controlplane.tenants.services import user_create
from tests.controlplane.deployments.conftest import Register, aws_models_are_parsed_once, register, tiny
from tests.sagemaker_local.stand import BUCKET, KEY, REGION, ROLE, Stand, refused, run_stand
from tests.waiting import eventually

__all__ = ["aws_models_are_parsed_once", "register", "tiny"]
pytestmark = pytest.mark.django_db
API = "/api/v1"
WEIGHTS = f"s3://{BUCKET}/weights/"


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(
        tmp_path_factory.mktemp("stand"), durations={"job": 100.0}, clock_running=False
    ) as running:
        running.client("s3").create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        running.endpoint("gw-llama")
        yield running


@pytest.fixture(autouse=True)
def target(db: None, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY["secret_key"])
    return target_create(
        name="aws",
        kind="sagemaker",
        region=REGION,
        endpoint_url=stand.url,
        role_arn=ROLE,
        store=f"s3://{BUCKET}/graft",
    )


@pytest.fixture
def deployment(target: Target, tiny_base: BaseModel) -> Deployment:
    return Deployment.objects.create(
        name="llama", target=target, base_model=tiny_base, hosting="components", endpoint="gw-llama"
    )


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def post(client: Client, path: str, body: dict[str, Any]) -> Any:
    return client.post(f"{API}/assessments/{path}", json.dumps(body), content_type="application/json")


def until(row: Assessment, status: str) -> Assessment:
    def is_reached() -> bool:
        if row.status != status:
            assessment_poll(pk=row.pk)
            row.refresh_from_db()
        return row.status == status

    eventually(is_reached, message=lambda: f"{row.status} {row.phase} {row.reason}")
    return row


def keys(stand: Stand) -> list[str]:
    listed = stand.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", ())
    return sorted(item["Key"] for item in listed)


def test_an_endpoint_is_benchmarked_with_our_prompts(
    stand: Stand, staff: Client, deployment: Deployment, prompts: PromptSet
) -> None:
    body = {"deployment": "llama", "workload": "concurrency: 4", "prompts": prompts.pk}
    answer = post(staff, "benchmarks", body)
    assert answer.status_code == 201, answer.content
    row = Assessment.objects.get()
    until(row, "running")
    sagemaker, name = stand.client("sagemaker"), row.remote["told"]["name"]
    assessment_poll(pk=row.pk)
    seen = sagemaker.describe_ai_benchmark_job(AIBenchmarkJobName=name)
    assert seen["BenchmarkTarget"]["Endpoint"] == {
        "Identifier": "gw-llama",
        "InferenceComponents": [{"Identifier": "gw-llama"}],
    }
    workload = sagemaker.describe_ai_workload_config(AIWorkloadConfigName=name)
    assert workload["AIWorkloadConfigs"] == {"WorkloadSpec": {"Inline": "concurrency: 4"}}
    (channel,) = workload["DatasetConfig"]["InputDataConfig"]
    assert any(
        f"s3://{BUCKET}/{key}".startswith(channel["DataSource"]["S3DataSource"]["S3Uri"])
        for key in keys(stand)
    )
    stand.advance(200)
    until(row, "done")
    assert row.result is not None
    assert row.result["files"] == [f"{name}/output.json"]
    assert [key for key in keys(stand) if "assessments" in key] == []
    assert sagemaker.list_ai_workload_configs()["AIWorkloadConfigs"] == []
    told = staff.get(f"{API}/assessments/{row.pk}").json()
    assert (told["subject"], told["status"], told["target"]) == ("benchmark", "done", "aws")
    assert row.result["output"] in staff.get(f"/staff/assessments/{row.pk}/").content.decode()
    assert staff.delete(f"{API}/assessments/{row.pk}").status_code == 204


def test_a_recommendation_tells_instance_types(
    stand: Stand, staff: Client, target: Target, tiny_base: BaseModel
) -> None:
    body = {
        "base_model": tiny_base.name,
        "target": "aws",
        "workload": "x",
        "best_by": "cost",
        "weights": WEIGHTS,
        "instance_types": ["ml.g6.2xlarge", "ml.g5.2xlarge"],
        "framework": "VLLM",
        "optimize": True,
    }
    answer = post(staff, "recommendations", body)
    assert answer.status_code == 201, answer.content
    row = until(Assessment.objects.get(), "running")
    assessment_poll(pk=row.pk)
    stand.advance(200)
    until(row, "done")
    assert row.result is not None
    types = [item["DeploymentConfiguration"]["InstanceType"] for item in row.result["recommendations"]]
    assert types == ["ml.g6.2xlarge", "ml.g5.2xlarge"]
    assert "ml.g6.2xlarge" in staff.get(f"/staff/assessments/{row.pk}/").content.decode()
    events = staff.get(f"{API}/assessments/{row.pk}/events").json()["results"]
    assert [event["event"] for event in events][-1] == "asked"


def test_an_output_that_cannot_be_listed_yet_is_tried_again(
    stand: Stand, staff: Client, deployment: Deployment
) -> None:
    post(staff, "benchmarks", {"deployment": "llama", "workload": "x"})
    row = until(Assessment.objects.get(), "running")
    assessment_poll(pk=row.pk)
    row.refresh_from_db()
    stand.advance(200)
    sagemaker, name = stand.client("sagemaker"), row.remote["told"]["name"]

    def is_completed() -> bool:
        job = sagemaker.describe_ai_benchmark_job(AIBenchmarkJobName=name)
        return bool(job["AIBenchmarkJobStatus"] == "Completed")

    eventually(is_completed)
    stand.put("faults", [{"kind": "refusal", "operation": "s3", "code": "AccessDenied", "status": 403}])
    assessment_poll(pk=row.pk)
    row.refresh_from_db()
    assert (row.status, row.phase) == ("running", "unreadable")
    assert "lacks the permission" in row.reason
    page = staff.get(f"/staff/assessments/{row.pk}/").content.decode()
    assert "unreadable" in page
    assert "lacks the permission" in page
    until(row, "done")
    assert row.result is not None
    assert row.result["files"] == [f"{name}/output.json"]


def test_a_cancel_stops_it_and_a_refusal_is_told(stand: Stand, staff: Client, deployment: Deployment) -> None:
    post(staff, "benchmarks", {"deployment": "llama", "workload": "x"})
    row = until(Assessment.objects.get(), "running")
    assessment_poll(pk=row.pk)
    row.refresh_from_db()
    assert work_cancel(work=row).status == "cancelling"
    until(row, "cancelled")
    Deployment.objects.update(endpoint="gone")
    post(staff, "benchmarks", {"deployment": "llama", "workload": "x"})
    refused = Assessment.objects.first()
    assert refused is not None
    until(refused, "running")
    assert "Could not find endpoint gone" in refused.reason
    assert work_cancel(work=refused).status == "cancelling"
    Assessment.objects.filter(pk=refused.pk).update(cancel_asked_at=timezone.now() - 2 * LEASE)
    until(refused, "cancelled")
    fault = {"kind": "refusal", "operation": "CreateAIWorkloadConfig", "count": 1, "status": 400}
    stand.put("faults", [{**fault, "code": "AccessDeniedException", "message": "not authorized to perform"}])
    post(staff, "benchmarks", {"deployment": "llama", "workload": "z"})
    denied = Assessment.objects.first()
    assert denied is not None
    assert until(denied, "failed").error_code == "sagemaker"
    asked = post(staff, "benchmarks", {"deployment": "llama", "workload": "y"}).json()["id"]
    assert post(staff, f"{asked}/cancel", {}).json()["status"] == "cancelled"


def test_nothing_stays_after_a_refusal_and_after_a_cancel(
    stand: Stand, staff: Client, deployment: Deployment, prompts: PromptSet
) -> None:
    body = {"deployment": "llama", "workload": "x", "prompts": prompts.pk}
    sagemaker = stand.client("sagemaker")
    refusal = {"kind": "refusal", "operation": "CreateAIBenchmarkJob", "count": 1, "status": 400}
    message = "not authorized to perform"
    stand.put("faults", [{**refusal, "code": "AccessDeniedException", "message": message}])
    post(staff, "benchmarks", body)
    until(Assessment.objects.get(), "failed")
    assert [key for key in keys(stand) if "assessments" in key] == []
    assert sagemaker.list_ai_workload_configs()["AIWorkloadConfigs"] == []
    stand.put("faults", [{"kind": "unavailable", "operation": "CreateAIBenchmarkJob", "count": 1}])
    post(staff, "benchmarks", body)
    row = Assessment.objects.first()
    assert row is not None
    until(row, "running")
    assert len([key for key in keys(stand) if "assessments" in key]) == 1
    assert work_cancel(work=row).status == "cancelling"
    Assessment.objects.filter(pk=row.pk).update(cancel_asked_at=timezone.now() - 2 * LEASE)
    until(row, "cancelled")
    assert [key for key in keys(stand) if "assessments" in key] == []
    assert sagemaker.list_ai_workload_configs()["AIWorkloadConfigs"] == []


def test_prompts_that_cannot_be_read_now_are_read_later(
    stand: Stand, staff: Client, deployment: Deployment, prompts: PromptSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*, prompts: PromptSet) -> bytes:
        raise UnavailableError("the store is away")

    post(staff, "benchmarks", {"deployment": "llama", "workload": "x", "prompts": prompts.pk})
    row = Assessment.objects.get()
    with monkeypatch.context() as patch:
        patch.setattr(polls, "prompts_read", away)
        until(row, "running")
        assert row.reason == "the store is away"
        Assessment.objects.update(created_at=timezone.now() - timedelta(hours=2))
        until(row, "failed")
    assert "has not accepted the job within 1 h: the store is away" in row.reason


def test_a_recommendation_is_made_with_adapters(
    stand: Stand, staff: Client, target: Target, tiny: BaseModel, register: Register
) -> None:
    """Their files are copied into the target's store, and the result names them; copies go at the end."""
    first = register("plain", "bot")
    register("rslora", "bot", 2)
    body = {"base_model": tiny.name, "target": "aws", "workload": "x", "best_by": "cost", "weights": WEIGHTS}
    adapters = [first.engine_name, "acme/bot@v2"]
    answer = post(staff, "recommendations", {**body, "adapters": adapters})
    assert answer.status_code == 201, answer.content
    row = until(Assessment.objects.get(), "running")
    assessment_poll(pk=row.pk)
    row.refresh_from_db()
    located = row.remote["told"]["request"]["AdapterSource"]["S3Uris"]
    assert [item["AdapterId"] for item in located] == ["bot-v1", "bot-v2"]
    for item in located:
        prefix = item["S3Uri"].removeprefix(f"s3://{BUCKET}/")
        assert {key.removeprefix(prefix) for key in keys(stand) if key.startswith(prefix)} == set(
            ADAPTER_FILES
        )
    stand.advance(200)
    until(row, "done")
    assert row.result is not None
    assert row.result["recommendations"][0]["AdapterDetails"]["S3Uris"] == located
    page = staff.get(f"/staff/assessments/{row.pk}/").content.decode()
    assert "recommended-adapters" in page
    assert first.engine_name in page
    assert [key for key in keys(stand) if "assessments" in key] == []


def test_a_folder_without_an_adapter_fails_the_job_with_the_reason(stand: Stand) -> None:
    sagemaker = stand.client("sagemaker")
    sagemaker.create_ai_workload_config(
        AIWorkloadConfigName="load", AIWorkloadConfigs={"WorkloadSpec": {"Inline": "x"}}
    )
    source = {"S3Uris": [{"AdapterId": "bot", "S3Uri": f"s3://{BUCKET}/nothing/"}]}
    request: dict[str, Any] = {
        "ModelSource": {"S3": {"S3Uri": WEIGHTS}},
        "OutputConfig": {"S3OutputLocation": f"s3://{BUCKET}/out/"},
        "AIWorkloadConfigIdentifier": "load",
        "PerformanceTarget": {"Constraints": [{"Metric": "cost"}]},
        "RoleArn": ROLE,
    }
    twice = {"S3Uris": source["S3Uris"] * 2}
    create = sagemaker.create_ai_recommendation_job
    code, message = refused(create, AIRecommendationJobName="twice", AdapterSource=twice, **request)
    assert (code, "bot more than once" in message) == ("ValidationException", True)
    create(AIRecommendationJobName="empty", AdapterSource=source, **request)
    stand.advance(200)

    def failed() -> Any:
        found = sagemaker.describe_ai_recommendation_job(AIRecommendationJobName="empty")
        return found if found["AIRecommendationJobStatus"] == "Failed" else None

    assert "has no adapter_config.json" in eventually(failed)["FailureReason"]
    sagemaker.delete_ai_recommendation_job(AIRecommendationJobName="empty")
    sagemaker.delete_ai_workload_config(AIWorkloadConfigName="load")


def test_adapters_of_an_earlier_releases_row_are_read_where_they_lie() -> None:
    row = Assessment(
        subject="recommendation",
        base_model=BaseModel(name="b"),
        remote={
            "options": {
                "weights": WEIGHTS,
                "metric": "throughput",
                "framework": "",
                "instance_types": [],
                "optimize": False,
                "adapters": [{"id": "adapter-1", "uri": "s3://b/adapters/0/"}],
            }
        },
    )
    request = assessment_request(row, Target(role_arn=ROLE), "n", output="s3://b/out/")
    assert request["AdapterSource"] == {"S3Uris": [{"AdapterId": "adapter-1", "S3Uri": "s3://b/adapters/0/"}]}
    assert "ComputeSpec" not in request


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("benchmarks", {"deployment": "none", "workload": "x"}, 404, "none"),
        ("benchmarks", {"deployment": "llama", "workload": " "}, 400, "workload"),
        ("recommendations", {"best_by": "price"}, 400, "is not a valid choice"),
        ("recommendations", {"target": "here"}, 400, "of kind sagemaker does not exist"),
        ("recommendations", {"weights": ""}, 400, "may not be blank"),
        ("recommendations", {"adapters": ["no name"]}, 400, "no name"),
        ("recommendations", {"adapters": ["acme/bot@v9"]}, 404, "has no ready adapter version"),
        ("recommendations", {"instance_types": ["a", "b", "c", "d"]}, 400, "no more than 3"),
    ],
)
def test_what_is_malformed_is_said(
    staff: Client,
    tiny_base: BaseModel,
    deployment: Deployment,
    path: str,
    body: dict[str, Any],
    status: int,
    says: str,
) -> None:
    whole = {
        "base_model": tiny_base.name,
        "target": "aws",
        "workload": "x",
        "best_by": "cost",
        "weights": WEIGHTS,
    }
    answer = post(staff, path, body if path == "benchmarks" else whole | body)
    assert (answer.status_code, says in answer.content.decode()) == (status, True), answer.content
    assert not Assessment.objects.exists()


def test_weights_in_a_folder_are_refused(staff: Client, tiny_base: BaseModel) -> None:
    body = {"base_model": tiny_base.name, "target": "aws", "workload": "x", "best_by": "cost"}
    answer = post(staff, "recommendations", body)
    assert (answer.status_code, "give weights" in answer.content.decode()) == (400, True)


def test_the_forms_ask_for_both(staff: Client, tiny_base: BaseModel, deployment: Deployment) -> None:
    page = staff.get("/staff/assessments/new").content.decode()
    assert "llama" in page
    wrong = staff.post("/staff/assessments/new", {"subject": "benchmark", "deployment": "llama"})
    assert (wrong.status_code, "describe the load" in wrong.content.decode()) == (422, True)
    sent = {"subject": "benchmark", "deployment": "llama", "workload": "x"}
    assert staff.post("/staff/assessments/new", sent).status_code == 302
    sent = {
        "subject": "recommendation",
        "base_model": tiny_base.name,
        "target": "aws",
        "workload": "x",
        "metric": "ttft-ms",
        "weights": WEIGHTS,
        "instance_types": "ml.g5.2xlarge, ml.g6.2xlarge",
    }
    answer = staff.post("/staff/assessments/new", sent)
    assert answer.status_code == 302
    row = Assessment.objects.first()
    assert row is not None
    assert row.remote["options"]["instance_types"] == ["ml.g5.2xlarge", "ml.g6.2xlarge"]
    status = staff.get(f"/staff/assessments/{row.pk}/status")
    assert "Progress" in status.content.decode()
    assert staff.post(f"/staff/assessments/{row.pk}/act", {"action": "cancel"}).status_code == 302
    assert staff.get(f"/staff/assessments/{row.pk}/status")["HX-Redirect"] == f"/staff/assessments/{row.pk}/"
    assert staff.post(f"/staff/assessments/{row.pk}/act", {"action": "remove"}).status_code == 302
    assert "benchmark" in staff.get("/staff/optimizations/").content.decode()
