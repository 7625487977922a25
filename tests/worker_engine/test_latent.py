"""Latent attention: what the cache holds, which form a call takes, and what config.json may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from kernels import native
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import draw, load, logits
from tests.worker_engine.tiny_latent import write_latent
from worker_engine.checkpoint.latent_config import LatentConfig
from worker_engine.checkpoint.rope_config import YarnScaling
from worker_engine.config import PAGE_SIZE
from worker_engine.errors import CheckpointError
from worker_engine.layers.latent_attention import LatentAttention
from worker_engine.layers.linear import LoraLinear
from worker_engine.layers.linear_weight import DenseWeight
from worker_engine.models import load_config

PUBLISHED: Final = LatentConfig(1536, 512, 128, 64, 128)
"""DeepSeek-V3's."""
YARN: Final = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}


def test_the_cache_holds_one_vector_a_token(make_engine: EngineFactory, tmp_path: Path) -> None:
    base = write_latent(tmp_path / "m")
    _, cache = load(base)
    assert cache.layer(0).shape == (1, 1, 64, PAGE_SIZE, 32 + 8)
    page_bytes = 2 * PAGE_SIZE * (32 + 8) * 4
    engine = make_engine(base, max_num_seqs=2, memory_gib=10 * page_bytes / 2**30)
    assert engine.pool.num_free == 10


def test_few_queries_take_the_absorbed_form() -> None:
    weight = torch.zeros(2 * 256, 512)
    attention = LatentAttention(PUBLISHED, 2, 1.0, LoraLinear(DenseWeight(weight)))
    assert attention.absorbs(1, 1)
    assert attention.absorbs(64, 4096)
    assert not attention.absorbs(512, 512)
    assert not attention.absorbs(512, 4096)


def test_bf16_logits_are_near_those_of_fp32(tmp_path: Path) -> None:
    """In both forms; a near tie of the router may send a few rows to other experts."""
    base = write_latent(tmp_path / "m", dtype="bfloat16")
    prompts = draw((48, 7))
    wanted = torch.cat(logits(*load(base), prompts, 64))
    for step in (64, 1):
        near = torch.cat(logits(*load(base, torch.bfloat16), prompts, step))
        assert (near - wanted).abs().median() <= 0.02 * wanted.std()


@pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
def test_bf16_logits_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Bit for bit, also where decode rows of several lengths share a call."""
    model, cache = load(write_latent(tmp_path / "m", dtype="bfloat16"), torch.bfloat16)
    prompts = draw((35, 22, 9, 40))
    for step in (1, 64):
        for prompt, beside in zip(prompts, logits(model, cache, prompts, step), strict=True):
            assert torch.equal(logits(model, cache, [prompt], step)[0], beside)


def test_the_layer_that_predicts_a_second_token_is_passed_over(tmp_path: Path) -> None:
    load(write_latent(tmp_path / "m", extra="model.layers.2.enorm.weight"))
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.enorm\.weight has no place"):
        load(write_latent(tmp_path / "n", extra="model.layers.1.enorm.weight"))


def test_sparse_layers_follow_the_dense_ones_at_the_stated_steps(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"num_hidden_layers": 8, "first_k_dense_replace": 3, "moe_layer_freq": 2}
    experts = load_config(write_latent(tmp_path / "m", **changes)).experts
    assert experts is not None
    assert sorted(experts.layers) == [4, 6]


def test_published_yarn_scales_scores_and_not_angles(tmp_path: Path) -> None:
    scaling = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
    config = load_config(write_latent(tmp_path / "m", rope_scaling=scaling))
    rope = config.attention[0].rope.scaling
    assert isinstance(rope, YarnScaling)
    assert rope.attention_factor == 1.0
    assert config.attention_scale == pytest.approx(24**-0.5 * 1.3688879454113936**2)
    assert config.max_position_embeddings == 163840


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not served"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not served"),
        ({"n_group": 3}, "n_group 3 does not divide the 4 experts"),
        ({"n_group": 4}, "n_group 4 does not divide"),
        ({"num_experts_per_tok": 3}, "num_experts_per_tok 3 is more than 1 of 2 groups"),
        ({"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim must be even"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}, "norm_topk_prob True"),
    ],
)
def test_what_is_not_served_is_refused_by_field(
    changes: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        load_config(write_latent(tmp_path / "m", **changes))


def test_guessed_tokens_change_no_greedy_answer(make_engine: EngineFactory, tmp_path: Path) -> None:
    base = write_latent(tmp_path / "m")
    answers = []
    for mode in ("off", "ngram"):
        engine = make_engine(base, max_num_seqs=4, speculation=mode)
        engine.add_request(request("a", [7, 8, 9] * 6, 24), None)
        answers.append(tokens(drain(engine)["a"]))
    assert answers[0] == answers[1]
