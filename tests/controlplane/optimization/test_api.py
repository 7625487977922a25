"""REST of optimizations, comparisons and prompt sets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from contracts.recipes.bundled_prompts import BUNDLED
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import variant_create
from controlplane.optimization.models import ComparisonRun, OptimizationJob, PromptSet
from controlplane.tenants.services import user_create

pytestmark = pytest.mark.django_db
API = "/api/v1"


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def post(client: Client, path: str, body: dict[str, Any], **headers: str) -> Any:
    return client.post(f"{API}/{path}", json.dumps(body), content_type="application/json", headers=headers)


def uploaded() -> int:
    """Number of prompt sets beside the bundled ones."""
    return PromptSet.objects.exclude(pk__in=[prompts.sha256 for prompts in BUNDLED.values()]).count()


def upload(client: Client, data: bytes) -> Any:
    return client.post(f"{API}/prompt-sets", {"file": SimpleUploadedFile("mine.jsonl", data)})


def job_request(base: BaseModel, **more: Any) -> dict[str, Any]:
    return {"base_model": base.name, "recipe": {"quantization": "int8"}, **more}


def test_the_same_job_asked_for_twice_is_the_one_there_is(staff: Client, tiny_base: BaseModel) -> None:
    first = post(staff, "optimizations", job_request(tiny_base))
    assert first.status_code == 201, first.json()
    spelt_out = job_request(
        tiny_base, recipe={"version": 1, "quantization": "int8", "speculation": {"tokens": 4}}
    )
    again = post(staff, "optimizations", spelt_out)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    other = post(staff, "optimizations", job_request(tiny_base, recipe={"quantization": "awq_int4_g64"}))
    assert other.status_code == 201
    assert OptimizationJob.objects.count() == 2
    job = first.json()
    assert (job["status"], job["machine"], job["recipe"]["target"]["hardware"]) == ("queued", "cpu", "cpu")
    assert job["checkpoint_sha256"] == tiny_base.checkpoint_sha256


def test_one_that_was_cancelled_is_asked_for_anew(staff: Client, tiny_base: BaseModel) -> None:
    first = post(staff, "optimizations", job_request(tiny_base)).json()["id"]
    cancelled = post(staff, f"optimizations/{first}/cancel", {})
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert post(staff, f"optimizations/{first}/cancel", {}).status_code == 409
    again = post(staff, "optimizations", job_request(tiny_base))
    assert again.status_code == 201
    assert again.json()["id"] != first
    events = staff.get(f"{API}/optimizations/{first}/events").json()["results"]
    assert [event["event"] for event in events] == ["cancel", "asked"]
    assert events[0]["actor"] == "s@graft.test"


def test_an_idempotency_key_answers_again(staff: Client, tiny_base: BaseModel) -> None:
    first, again = (
        post(staff, "optimizations", job_request(tiny_base), **{"Idempotency-Key": "k"}) for _ in range(2)
    )
    assert (first.status_code, again.status_code, again["Idempotent-Replayed"]) == (201, 201, "true")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"recipe": {"quantization": "int3"}}, "recipe.quantization must be none, int8"),
        ({"recipe": {"quantisation": "int8"}}, "recipe.quantisation is not a known field"),
        ({"recipe": {"quantization": "fp8"}}, "FP8 products need a GPU"),
        ({"recipe": {}, "preset": "balanced"}, "either recipe, or preset with target"),
        ({}, "either recipe, or preset with target"),
        ({"preset": "fastest"}, '"fastest" is not a valid choice.'),
        ({"preset": "balanced", "target": {"hardware": "sm12"}}, "target.hardware must be cpu"),
        ({"recipe": {}, "target": {"hardware": "cpu"}}, "target is valid only with preset"),
        ({"recipe": {}, "variant": "Not A Name"}, "variant must be 1-63 lower-case"),
        ({"recipe": {}, "variants": "x"}, "'variants' is none of"),
        (
            {
                "recipe": {
                    "quantization": "awq_int4_g128",
                    "target": {"engine": "sagemaker", "hardware": "sm90", "instance_type": "ml.p5.48xlarge"},
                }
            },
            "sagemaker.target is required",
        ),
    ],
)
def test_what_is_wrong_is_said(staff: Client, base: BaseModel, body: dict[str, Any], says: str) -> None:
    answer = post(staff, "optimizations", {"base_model": base.name, **body})
    assert answer.status_code == 400, answer.content
    assert says in str(answer.json())
    assert OptimizationJob.objects.count() == 0


@pytest.fixture
def base(tiny_base: BaseModel) -> BaseModel:
    """A base whose architecture the worker knows; its weights are not read here."""
    assert tiny_base.architecture == "LlamaForCausalLM"
    return tiny_base


def test_a_checkpoint_without_digests_is_not_worked_on(staff: Client, base_model: BaseModel) -> None:
    answer = post(staff, "optimizations", job_request(base_model))
    assert (answer.status_code, "wait until they are done" in answer.content.decode().lower()) == (409, True)


def test_a_check_tells_every_reason_and_starts_nothing(staff: Client, base: BaseModel) -> None:
    recipe = {
        "quantization": "fp8",
        "speculation": {"method": "eagle"},
        "compilation": {"packed": True},
        "tensor_parallel": {"degree": 2},
        "target": {"hardware": "sm80"},
    }
    body = {"base_model": base.name, "recipe": recipe, "situation": {"merge_adapter": True}}
    told = post(staff, "optimization-checks", body).json()
    assert told["accepted"] is False
    assert {reason["code"] for reason in told["reasons"]} == {
        "fp8_hardware",
        "merged_adapter_on_quantized_base",
        "eagle_is_not_served_here",
        "packed_form_is_the_cpus",
        "one_device",
    }
    fine = post(staff, "optimization-checks", {"base_model": base.name, "preset": "lowest_cost"}).json()
    assert (fine["accepted"], fine["reasons"], fine["recipe"]["quantization"]) == (True, [], "int8")
    wrong = post(staff, "optimization-checks", {**body, "situation": {"local_test": True}})
    assert "situation.local_test is not a known field" in str(wrong.json())
    assert OptimizationJob.objects.count() == 0


def test_presets_are_for_a_target(staff: Client) -> None:
    rows = staff.get(f"{API}/optimization-presets?hardware=sm90").json()
    assert [row["name"] for row in rows] == ["lowest_cost", "lowest_latency", "balanced"]
    assert rows[0]["recipe"]["quantization"] == "awq_int4_g128"
    assert staff.get(f"{API}/optimization-presets?hardwear=sm90").status_code == 400


def test_lines_that_do_not_parse_are_told_by_their_numbers(staff: Client) -> None:
    data = b'{"text": "fine"}\n\nnot json\n{"text": ""}\n[1]\n{"prompt": "a", "text": "b"}\n'
    answer = upload(staff, data)
    assert answer.status_code == 400
    text = answer.json()["errors"][0]["detail"]
    for part in (
        "line 3: is not JSON: Expecting value at column 1",
        "line 4: text must be",
        "line 5: must be an object",
        "line 6: needs one",
    ):
        assert part in text
    assert uploaded() == 0


def test_lines_that_no_database_keeps_are_told(staff: Client) -> None:
    data = b'{"text": "a", "x": NaN}\n{"text": "a", "x": 1e999}\n{"text": "a\\u0000"}\n{"text": "\\ud800"}\n'
    text = upload(staff, data).json()["errors"][0]["detail"]
    for part in (
        "line 1: is not JSON: it holds NaN at x",
        "line 2: is not JSON: it holds an infinite number at x",
        "line 3: is not JSON: it holds a NUL character at text",
        "line 4: is not JSON: it holds half of a surrogate pair at text",
    ):
        assert part in text
    assert uploaded() == 0


@pytest.mark.costly("a large file")
def test_a_prompt_set_is_its_content(staff: Client, base: BaseModel) -> None:
    first, again = (upload(staff, b'{"messages": [{"role": "user", "content": "hi"}]}\n') for _ in range(2))
    assert first.status_code == again.status_code == 201
    assert (first.json(), uploaded()) == (again.json(), 1)
    assert (first.json()["name"], first.json()["lines"]) == ("mine.jsonl", 1)
    sha256 = first.json()["sha256"]
    unread = post(staff, "optimizations", job_request(base, prompts=sha256))
    assert (unread.status_code, "prompts calibrate AWQ" in unread.text) == (400, True)
    awq = {"quantization": "awq_int4_g64"}
    made = post(staff, "optimizations", job_request(base, recipe=awq, prompts=sha256))
    assert made.json()["prompts"] == sha256
    # Texts are part of what a job is.
    assert post(staff, "optimizations", job_request(base, recipe=awq)).status_code == 201
    assert staff.delete(f"{API}/prompt-sets/{sha256}").status_code == 409
    for job in OptimizationJob.objects.all():
        post(staff, f"optimizations/{job.pk}/cancel", {})
        assert staff.delete(f"{API}/optimizations/{job.pk}").status_code == 204
    assert staff.delete(f"{API}/prompt-sets/{sha256}").status_code == 204


def test_an_etag_is_not_of_progress(staff: Client, base: BaseModel) -> None:
    path = f"{API}/optimizations/{post(staff, 'optimizations', job_request(base)).json()['id']}"
    tag = staff.get(path)["ETag"]
    OptimizationJob.objects.update(percent=12.5, phase="checkpoint", log_tail="x")
    assert staff.get(path, headers={"If-None-Match": tag}).status_code == 304
    OptimizationJob.objects.update(status="running")
    assert staff.get(path, headers={"If-None-Match": tag}).status_code == 200
    assert staff.delete(path, headers={"If-Match": tag}).status_code == 412


def test_a_comparison_is_asked_for_once_at_a_time(staff: Client, base: BaseModel) -> None:
    variant_create(base_model=base, name="int8", dtype="int8", source="/nowhere")
    body = {
        "base_model": base.name,
        "arms": [{}, {"variant": "int8"}],
        "load": {"concurrency": [1, 2]},
        "quality": {"scorer": {"kind": "exact"}},
        "price": {"hour": 1.5},
        "seed": 3,
    }
    first, again = (post(staff, "comparisons", body) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200), first.json()
    run = first.json()
    assert run["arms"] == [{"name": "original", "variant": ""}, {"name": "int8", "variant": "int8"}]
    assert (run["machine"], run["settings"]["price"]) == ("cpu", {"hour": 1.5})
    told = staff.get(f"{API}/comparisons/{run['id']}/result").json()
    assert told == {"status": "queued", "result": None, "rates": []}
    assert staff.delete(f"{API}/comparisons/{run['id']}").status_code == 409
    assert post(staff, f"comparisons/{run['id']}/cancel", {}).json()["status"] == "cancelled"
    assert post(staff, "comparisons", body).status_code == 201
    assert staff.get(f"{API}/comparisons?status=queued").json()["results"][0]["id"] != run["id"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"arms": [{}]}, 400, "2 to 8 arms"),
        ({"arms": [{}, {}]}, 400, "two arms are named 'original'"),
        ({"arms": [{}, {"variant": "gone"}]}, 404, "has no variant 'gone'"),
        ({"arms": [{}, {"name": "again"}], "load": {"streams": 1}}, 400, "'streams' is none of"),
        ({"arms": [{}, {"name": "again"}], "load": {"concurrency": [0]}}, 400, "greater than or equal to 1"),
        ({"arms": [{}, {"name": "again"}], "prompts": "ab"}, 404, "prompt set 'ab' does not exist"),
    ],
)
def test_a_wrong_comparison_is_refused(
    staff: Client, base: BaseModel, body: dict[str, Any], status: int, says: str
) -> None:
    answer = post(staff, "comparisons", {"base_model": base.name, **body})
    assert (answer.status_code, says in str(answer.json())) == (status, True), answer.json()
    assert ComparisonRun.objects.count() == 0


def test_texts_that_no_database_keeps_are_refused(staff: Client, base: BaseModel) -> None:
    """On PostgreSQL they would be a 500."""
    drafted = {"method": "draft", "draft_model": "/models/a\0b"}
    answer = post(staff, "optimizations", job_request(base, recipe={"speculation": drafted}))
    assert answer.status_code == 400
    assert "a NUL character at recipe.speculation.draft_model" in answer.json()["errors"][0]["detail"]
    schema = {"kind": "json_schema", "schema": {"title": "a\0b"}}
    arms = [{"variant": ""}, {"variant": "", "name": "again"}]
    body = {"base_model": base.name, "arms": arms, "quality": {"scorer": schema}}
    answer = post(staff, "comparisons", body)
    assert (
        answer.status_code,
        "a NUL character at quality.scorer.schema.title" in answer.json()["errors"][0]["detail"],
    ) == (400, True)
