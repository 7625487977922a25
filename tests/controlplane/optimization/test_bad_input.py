"""Unusable input, through the whole product: a clear state, its message, and no leftovers.

Here is what the service refuses by the catalogue and what the real subprocess finds out; kills, full disks
and folders of others are in `test_endings`, recipes and lines of prompt sets in `test_api`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.services import variant_create
from controlplane.optimization.attempt import work_run
from controlplane.optimization.models import Artifact, OptimizationJob
from controlplane.optimization.prompt_sets import prompts_create
from controlplane.tenants.services import user_create
from tests.controlplane.optimization.conftest import Ask, prompt_lines

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def post(client: Client, base: BaseModel, **more: Any) -> tuple[int, str]:
    body = {"base_model": base.name, "recipe": {"quantization": "int8"}, **more}
    answer = client.post("/api/v1/optimizations", json.dumps(body), content_type="application/json")
    return answer.status_code, str(answer.json())


def test_an_architecture_that_is_not_served_is_refused_by_name(staff: Client, tiny_base: BaseModel) -> None:
    BaseModel.objects.filter(pk=tiny_base.pk).update(architecture="MambaForCausalLM")
    status, said = post(staff, tiny_base)
    assert (status, "MambaForCausalLM is not served" in said) == (400, True), said
    page = staff.post(
        "/staff/optimizations/new", {"base_model": tiny_base.name, "preset": "lowest_cost", "hardware": "cpu"}
    )
    assert (page.status_code, "MambaForCausalLM is not served" in page.content.decode()) == (422, True)
    assert not OptimizationJob.objects.exists()


def test_a_variant_that_is_there_is_not_overwritten(staff: Client, tiny_base: BaseModel) -> None:
    there = variant_create(base_model=tiny_base, name="small", dtype="int8", source="/models/small")
    status, said = post(staff, tiny_base, variant="small")
    assert (status, "has a variant" in said) == (409, True), said
    assert not OptimizationJob.objects.exists()
    assert Variant.objects.get().source == there.source


@pytest.mark.costly("starts an optimizer")
@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["a few words"] * 15, "has 15 lines of data, at least 16 are needed"),
        ([f"{number}: a few words" for number in range(20)], "at least 1024 are needed"),
    ],
)
def test_too_little_calibration_fails_with_what_is_needed(
    demo_base: BaseModel, ask: Ask, texts: list[str], says: str
) -> None:
    prompts = prompts_create(stream=prompt_lines(*texts))
    ended(ask(demo_base, {"quantization": "awq_int4_g64"}, prompts), "bad_data", says)


def ended(job: OptimizationJob, code: str, says: str) -> None:
    """Run the job in the real subprocess; check that it fails and leaves no result."""
    work_run(kind="job", pk=job.pk)
    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", code), job.log_tail
    assert says in job.reason
    assert job.ended_at is not None
    assert job.variant is None
    assert not Variant.objects.exists()
    assert not Artifact.objects.exists()
