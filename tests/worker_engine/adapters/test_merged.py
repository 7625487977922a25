"""Merged mode: within rounding of the unmerged adapter, and afterwards the base's bits are what they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.merged import MergedAdapter, MergePolicy
from worker_engine.checkpoint.model_config import PACKED_MODULES
from worker_engine.engine import Engine

PROMPT = list(range(40, 75))


@pytest.fixture
def adapters(tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path) -> dict[str, Adapter]:
    loader = AdapterLoader(tiny_model, tmp_path / "c", dtype=torch.float32, device=torch.device("cpu"))
    return {name: loader.load(adapter_ref(folder)) for name, folder in tiny_adapters.items()}


def merged(engine: Engine) -> MergedAdapter:
    state = engine._runner.merged
    assert state is not None
    return state


def base_weights(engine: Engine) -> list[torch.Tensor]:
    return [
        by_name[name].weight.clone() for by_name in engine._runner._model.linears for name in PACKED_MODULES
    ]


def merged_adapter(state: MergedAdapter) -> Adapter | None:
    return state.adapter


def generate(engine: Engine, adapter: Adapter | None, count: int = 24) -> list[int]:
    engine.add_request(request("r", PROMPT, count), adapter)
    return tokens(drain(engine)["r"])


@pytest.mark.parametrize("name", ["all", "patterns", "rslora", "narrow"])
def test_the_merged_adapter_says_the_same_and_leaves_no_trace(
    name: str, tiny_model: Path, adapters: dict[str, Adapter], make_engine: EngineFactory
) -> None:
    adapter, plain = adapters[name], make_engine(tiny_model)
    expected = {owner: generate(plain, owner) for owner in (adapter, adapters["plain"], None)}
    engine = make_engine(tiny_model, merge_adapter=adapter.sha256)
    before = base_weights(engine)
    assert generate(engine, adapter) == expected[adapter]
    assert merged(engine).complete
    assert merged(engine).in_place
    changed = [not torch.equal(a, b) for a, b in zip(before, base_weights(engine), strict=True)]
    assert any(changed), "nothing was merged"
    assert generate(engine, None) == expected[None]
    assert not merged(engine).in_place
    assert all(torch.equal(a, b) for a, b in zip(before, base_weights(engine), strict=True))
    assert generate(engine, adapters["plain"]) == expected[adapters["plain"]]
    assert generate(engine, adapter) == expected[adapter]
    assert merged(engine).in_place


def test_beside_others_the_base_stands(
    tiny_model: Path, adapters: dict[str, Adapter], make_engine: EngineFactory
) -> None:
    """A neighbour that comes and goes while the merged adapter decodes."""
    adapter, plain = adapters["all"], make_engine(tiny_model)
    expected = [generate(plain, adapter, 40), generate(plain, None, 6), generate(plain, adapters["plain"], 6)]
    engine = make_engine(tiny_model, merge_adapter=adapter.sha256)
    engine.add_request(request("hot", PROMPT, 40), adapter)
    found: dict[str, list[int]] = {}
    states = []
    for step in range(60):
        if step == 10:
            engine.add_request(request("base", PROMPT, 6), None)
        if step == 22:
            engine.add_request(request("other", PROMPT, 6), adapters["plain"])
        for delta in engine.step():
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
        states.append(merged(engine).in_place)
    assert [found["hot"], found["base"], found["other"]] == expected
    assert [states[9], states[12], states[20], states[24], states[35]] == [True, False, True, False, True]


def test_only_a_hot_adapter_is_merged_and_a_cold_one_given_up(
    tiny_model: Path, adapters: dict[str, Adapter], make_engine: EngineFactory
) -> None:
    engine = make_engine(tiny_model)
    state = MergedAdapter(
        engine._runner._model.linears, engine._runner.adapters._config, MergePolicy(steps=10)
    )
    hot, other = adapters["all"], adapters["plain"]
    for _ in range(20):
        assert not state.step([hot, other])
        assert not state.step([None])
    assert merged_adapter(state) is None
    served = [state.step([hot, hot]) for _ in range(14)]
    assert served == [False] * 10 + [True] * 4  # 9 of 10 steps, then a layer a step, 3 of them
    assert not state.step([hot, None])
    assert merged_adapter(state) is hot
    for _ in range(10):
        assert not state.step([other])
    assert merged_adapter(state) is not hot


def test_bf16_merged_outputs_stand_as_near_to_fp32_as_unmerged_ones(
    tiny_model: Path, adapters: dict[str, Adapter], make_engine: EngineFactory
) -> None:
    """Both round: the merged weight once, the unmerged sum of two products once."""
    engine, adapter = make_engine(tiny_model), adapters["all"]
    linear, pair = engine._runner._model.linears[0]["o"], adapter.layers[0]["o_proj"]
    x = torch.randn(16, pair.a.shape[1], generator=torch.Generator().manual_seed(0))
    exact = x @ (linear.weight + pair.b.T @ pair.a).T
    half, a, b = linear.weight.bfloat16(), pair.a.bfloat16(), pair.b.bfloat16()
    together = (half.float() + b.float().T @ a.float()).bfloat16()
    one = (x.bfloat16() @ together.T).float()
    two = (x.bfloat16() @ half.T + (x.bfloat16() @ a.T) @ b).float()
    assert (one - exact).norm() <= 1.5 * (two - exact).norm()
