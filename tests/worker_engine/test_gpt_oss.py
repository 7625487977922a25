"""GPT-OSS beside the parity tests: bf16, MXFP4, prefixes longer than the window, refusals, and harmony."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels import native
from kernels.lora import Segments
from kernels.moe.reference import sparse_mlp
from tests.worker_engine.conftest import EngineFactory, drain, tokens
from tests.worker_engine.conftest import request as ask
from tests.worker_engine.forward_pass import CPU, draw, load, logits
from tests.worker_engine.sagemaker.conftest import Container
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_engine.tiny_gpt_oss import HIDDEN, LAYOUTS, WINDOW, write_gpt_oss, write_stacks
from tests.worker_process import run_worker
from worker_engine import model_runner
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.config import PAGE_SIZE
from worker_engine.errors import CheckpointError, ConfigError
from worker_engine.models import load_config, load_model

Tensors = dict[str, torch.Tensor]
GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt_oss(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt_oss(tmp_path_factory.mktemp("mxfp4"), mxfp4=True)


def loaded(base: Path, folder: Path, cache: Path, dtype: torch.dtype = torch.bfloat16) -> Adapter:
    return AdapterLoader(base, cache, dtype=dtype, device=CPU).load(adapter_ref(folder))


def test_mxfp4_equals_its_widened_form(plain: Path, packed: Path) -> None:
    """In fp32 bit for bit; in bf16, where codes stay packed, within the rounding of the products."""
    prompts = draw((60, 9))
    wanted = torch.cat(logits(*load(plain), prompts, 64))
    assert torch.equal(torch.cat(logits(*load(packed), prompts, 64)), wanted)
    near = torch.cat(logits(*load(packed, torch.bfloat16), prompts, 64))
    assert (near - wanted).abs().median() <= 0.1 * wanted.std()


def test_a_layer_of_experts_equals_the_specification(plain: Path) -> None:
    """In fp32, of the tensors as the checkpoint stores them."""
    stored = {name: value.float() for name, value in load_file(plain / "model.safetensors").items()}
    prefix = "model.layers.1.mlp."
    gate_up, gate_up_bias = (stored[f"{prefix}experts.gate_up_proj{end}"] for end in ("", "_bias"))
    x = 3 * torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(2))
    logits = x @ stored[f"{prefix}router.weight"].T + stored[f"{prefix}router.bias"]
    assert (x @ gate_up[0]).max() > 7, "no value is clamped"
    values, chosen = logits.topk(2, dim=-1)
    wanted = sparse_mlp(
        x,
        values.softmax(-1),
        chosen,
        torch.cat((gate_up[..., ::2], gate_up[..., 1::2]), -1).mT,
        stored[f"{prefix}experts.down_proj"].mT,
        activation="clamped_swiglu",
        gate_up_bias=torch.cat((gate_up_bias[:, ::2], gate_up_bias[:, 1::2]), -1),
        down_bias=stored[f"{prefix}experts.down_proj_bias"],
    )
    layer = load(plain)[0]._layers[1][0]
    found = layer._sparse(x, torch.zeros_like(x), {}, Segments.group([-1] * 9))  # type: ignore[attr-defined]
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
def test_bf16_logits_do_not_depend_on_the_batch(packed: Path, tmp_path: Path) -> None:
    """Bit for bit, beyond the window, with adapters beside base rows."""
    owners: list[Adapter | None] = [
        loaded(packed, write_stacks(tmp_path / name, seed=seed, rank=seed + 2), tmp_path / "c")
        for seed, name in enumerate("ab")
    ]
    owners.append(None)
    model, kv = load(packed, torch.bfloat16)
    prompts = draw((WINDOW + 19, 22, 40))
    for step in (1, 64):
        held = AdapterBatch(load_config(packed), dtype=torch.bfloat16)
        together = logits(model, kv, prompts, step, held, owners)
        for prompt, owner, beside in zip(prompts, owners, together, strict=True):
            alone = AdapterBatch(load_config(packed), dtype=torch.bfloat16)
            assert torch.equal(logits(model, kv, [prompt], step, alone, [owner])[0], beside)
        assert torch.equal(logits(model, kv, [prompts[2]], step)[0], together[2]), "a base row"


@pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
@pytest.mark.parametrize(("form", "bits"), [("plain", 16), ("packed", 8)])
def test_packed_weights_are_mapped_at_the_next_start(
    form: str, bits: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base = request.getfixturevalue(form)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": CPU, "max_model_len": 64}
    experts = []
    for folder in (None, tmp_path):
        model = load_model(base, load_config(base), packed_in=folder, **options)
        experts.append(model._layers[1][0]._sparse.gate_up[3])  # type: ignore[attr-defined]
    assert [expert.matrix.bits for expert in experts] == [bits, bits]
    assert torch.equal(experts[0].dense(), experts[1].dense())
    with Checkpoint(base, dtype=torch.bfloat16, device=CPU, packed_in=tmp_path) as checkpoint:
        assert checkpoint.packed.take(f"{GATE_UP}.3", bits, 128, 64) is not None


def test_a_cached_prefix_beyond_the_window_changes_no_token(plain: Path, make_engine: EngineFactory) -> None:
    prompt = draw((WINDOW + 3 * PAGE_SIZE + 5,))[0]
    engine = make_engine(plain, max_num_seqs=2, max_num_batched_tokens=16)
    answers = []
    for index in range(2):
        engine.add_request(ask(str(index), prompt, 24), None)
        deltas = drain(engine)[str(index)]
        answers.append((tokens(deltas), max(delta.cached_tokens for delta in deltas)))
    (first, fresh), (second, cached) = answers
    assert first == second
    assert (fresh, cached) == (0, WINDOW // PAGE_SIZE * PAGE_SIZE + 3 * PAGE_SIZE)


BROKEN: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no sinks": (lambda held: held.pop("model.layers.0.self_attn.sinks"), "has no tensor .*sinks"),
    "no bias": (lambda held: held.pop(f"{GATE_UP}_bias"), "has no tensor .*gate_up_proj_bias"),
    "no scales": (lambda held: held.pop(f"{GATE_UP}_scales"), "has no tensor .*gate_up_proj_scales"),
    "short blocks": (
        lambda held: held.update({f"{GATE_UP}_blocks": held[f"{GATE_UP}_blocks"][:, :-2].contiguous()}),
        r"gate_up_proj_blocks has shape \[4, 126, 2, 16\], expected \[4, 128, 2, 16\]",
    ),
    "signed scales": (
        lambda held: held.update({f"{GATE_UP}_scales": held[f"{GATE_UP}_scales"].to(torch.int8)}),
        "gate_up_proj_scales is torch.int8, expected torch.uint8",
    ),
    "spare": (lambda held: held.update({"model.odd": torch.ones(2)}), "model.odd has no place"),
    "blocks of a plain layer": (
        lambda held: held.update({"lm_head.weight_blocks": torch.ones(272, 2, 16, dtype=torch.uint8)}),
        "served for stacked experts alone",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_checkpoint_is_refused_by_name(packed: Path, tmp_path: Path, name: str) -> None:
    change, message = BROKEN[name]
    tensors = load_file(packed / "model.safetensors")
    change(tensors)
    (tmp_path / "config.json").write_text((packed / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit 5.0 is not served, only 7.0"),
        ({"num_experts_per_tok": 9}, "9 is more than the 4 experts"),
        ({"quantization_config": {"quant_method": "mxfp4", "bits": 8}}, "bits is not served"),
    ],
)
def test_an_unserved_configuration_is_refused_by_name(
    plain: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    config = json.loads((plain / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        load_config(tmp_path)


def test_other_devices_are_refused_at_start(
    plain: Path, make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device: True)
    with pytest.raises(ConfigError, match=r"GptOssForCausalLM has experts, .* on the CPU"):
        make_engine(plain)


@pytest.mark.costly("starts a worker process")
def test_chats_in_harmony_with_adapters_of_every_layout_by_http(packed: Path, tmp_path: Path) -> None:
    """The worker finds the form of thoughts by itself: no option names it."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 0}
    adapters = [adapter_ref(write(tmp_path / layout)) for layout, write in LAYOUTS.items()]
    asked = [body | {"model": "tiny"}]
    asked += [body | {"model": adapter.name, "adapter": adapter.to_dict()} for adapter in adapters]
    asked.append(body | {"model": "tiny", "reasoning_effort": "none"})
    (tmp_path / "w").mkdir()
    with run_worker(packed, tmp_path / "w", "--memory-gib", "0.05") as process:
        container = Container(process, tmp_path / "w")
        answers = [container.call("POST", "/v1/chat/completions", one) for one in asked]
    assert [status for status, _, _ in answers] == [200] * len(asked[1:]) + [400], answers
    assert "reasoning_effort must be low, medium, high" in answers[-1][2]["error"]["message"]
    told = {json.dumps(answer["choices"][0]["message"]) for _, _, answer in answers[:-1]}
    assert len(told) == 1 + len(adapters), "each adapter changes the answer"
