"""The table of JumpStart models: by REST, in the form, and its agreement with our recipes' rules."""

from __future__ import annotations

import pytest
from django.test import Client

from contracts.recipes.compatibility import Stack, reasons
from contracts.recipes.model_facts import ModelFacts
from contracts.recipes.recipe import Recipe
from contracts.recipes.spec_fields import SpecError
from controlplane.catalog.models import BaseModel
from controlplane.deployments.targets.services import target_create
from controlplane.optimization.sagemaker.jumpstart import JUMPSTART_MODELS, JumpStartModel
from controlplane.tenants.services import user_create
from tests.sagemaker_local.stand import REGION, ROLE

G5 = {"engine": "sagemaker", "hardware": "sm86", "instance_type": "ml.g5.12xlarge"}
INF2 = {"engine": "sagemaker", "hardware": "neuron", "instance_type": "ml.inf2.48xlarge"}
P5 = {"engine": "sagemaker", "hardware": "sm90", "instance_type": "ml.p5.48xlarge"}


@pytest.mark.django_db
def test_staff_read_the_table_with_its_day_and_source() -> None:
    client = Client()
    assert client.get("/api/v1/jumpstart-models").status_code in (401, 403)
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    told = client.get("/api/v1/jumpstart-models").json()
    assert (told["as_of"], told["source"].rpartition("/")[2]) == (
        "2026-11-27",
        "optimization-supported-models.html",
    )
    assert told["models"][0] == {
        "model_id": "meta-textgeneration-llama-2-7b",
        "name": "Meta Llama 2 7B",
        "quantization": ["INT4-AWQ", "INT8-SmoothQuant", "FP8"],
        "schemes": ["awq_int4_g128", "fp8"],
        "speculative_decoding": True,
        "fast_model_loading": True,
        "compilation": ["neuron", "tensorrt_llm"],
    }


@pytest.mark.parametrize("model", JUMPSTART_MODELS, ids=lambda model: model.model_id)
def test_what_the_table_lists_is_a_recipe_that_is_accepted(model: JumpStartModel) -> None:
    recipes = [{"quantization": scheme, "target": P5} for scheme in model.schemes]
    targets = {"neuron": INF2, "tensorrt_llm": G5}
    ahead = {"ahead_of_time": True}
    recipes += [{"compilation": ahead, "target": targets[compiler]} for compiler in model.compilation]
    recipes.append({"speculation": {"method": "draft", "draft_model": "sagemaker"}, "target": G5})
    recipes.append({"tensor_parallel": {"degree": 4, "presharded": True}, "target": G5})
    facts = ModelFacts("LlamaForCausalLM", names=(model.model_id,))
    for recipe in recipes:
        assert reasons(Stack(Recipe.from_dict({"version": 1, **recipe}), facts)) == []


@pytest.mark.django_db
def test_the_form_shows_the_table(base_model: BaseModel) -> None:
    target_create(name="aws", kind="sagemaker", region=REGION, role_arn=ROLE, store="s3://artifacts/graft")
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    page = client.get("/staff/optimizations/new").content.decode()
    assert "meta-textgeneration-llama-codellama-13b-instruct" in page
    assert "2026-11-27" in page


def test_three_bits_are_one_scheme() -> None:
    assert Recipe.from_dict({"version": 1, "quantization": "awq_int3_g128"}).calibrates
    with pytest.raises(SpecError, match=r"quantization"):
        Recipe.from_dict({"version": 1, "quantization": "awq_int3"})
