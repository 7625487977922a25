"""Adapters that the bundled worker cannot serve are registered, and say which engines can."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.serving import serving_options
from controlplane.adapters.validation import version_validate
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.routes.selectors import route_adapter
from controlplane.tenants.models import Tenant
from tests.controlplane.conftest import CONFIG, adapter_files, bf16, safetensors

pytestmark = pytest.mark.django_db
LAYER = "model.layers.0."
EXPERT = f"{LAYER}mlp.experts.1.up_proj"


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    """A mixture of experts of a class that vLLM serves with LoRA."""
    folder = tmp_path / "moe"
    folder.mkdir()
    config = {"architectures": ["Qwen3MoeForCausalLM"], "max_position_embeddings": 64, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        "model.embed_tokens": (16, 4),
        "lm_head": (16, 4),
        f"{LAYER}self_attn.q_proj": (8, 4),
        f"{LAYER}mlp.gate": (2, 4),
        **{f"{LAYER}mlp.experts.{number}.up_proj": (6, 4) for number in range(2)},
    }
    weights = safetensors({f"{name}.weight": bf16(*shape) for name, shape in shapes.items()})
    (folder / "model.safetensors").write_bytes(weights)
    return base_model_register(name="moe", source=folder)


def register(tenant: Tenant, base: BaseModel, tensors: dict[str, Any], **config: Any) -> AdapterVersion:
    named = {f"base_model.model.{name}": value for name, value in tensors.items()}
    files = adapter_files({**CONFIG, **config}, named)
    streams = {name: BytesIO(data) for name, data in files.items()}
    version = adapter_register(tenant=tenant, name="expert", base_model=base, files=streams)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


def pair(path: str, out: int, inner: int) -> dict[str, Any]:
    return {f"{path}.lora_A.weight": bf16(2, inner), f"{path}.lora_B.weight": bf16(out, 2)}


def test_lora_on_experts_is_for_the_worker_and_vllm(tenant: Tenant, base: BaseModel) -> None:
    version = register(tenant, base, pair(EXPERT, 6, 4), target_modules=["up_proj"])
    assert (version.status, version.reason, version.traits) == ("ready", "", ["experts"])
    route = route_adapter(tenant=tenant.pk, name="expert")
    assert route is not None
    assert route.versions[1].traits == ("experts",)
    worker, vllm = serving_options(base_model=base, ref=version.ref())
    assert (worker.name, worker.serves, worker.reason) == ("the bundled worker", "yes", "")
    assert vllm.name.startswith("vLLM ")
    assert (vllm.serves, vllm.reason) == ("yes", "")


@pytest.mark.parametrize(
    ("tensors", "config", "trait"),
    [
        (pair(f"{LAYER}mlp.gate", 2, 4), {"target_modules": ["gate"]}, "router"),
        (
            pair(f"{LAYER}self_attn.q_proj", 8, 4) | {"score.weight": bf16(3, 4)},
            {"target_modules": ["q_proj"], "modules_to_save": ["score"], "task_type": "SEQ_CLS"},
            "classification",
        ),
    ],
)
def test_other_layouts_are_registered_with_what_they_need(
    tenant: Tenant, base: BaseModel, tensors: dict[str, Any], config: dict[str, Any], trait: str
) -> None:
    version = register(tenant, base, tensors, **config)
    assert (version.status, version.reason) == ("ready", "")
    assert trait in version.traits


def test_a_pair_that_does_not_fit_the_expert_is_refused(tenant: Tenant, base: BaseModel) -> None:
    version = register(tenant, base, pair(EXPERT, 5, 4), target_modules=["up_proj"])
    assert version.status == "refused"
    assert "lora_B.weight has shape [5, 2], expected [6, 2]" in version.reason
    version = register(tenant, base, pair(EXPERT.replace(".1.", ".2."), 6, 4), target_modules=["up_proj"])
    assert "the base model has no module model.layers.0.mlp.experts.2.up_proj" in version.reason
