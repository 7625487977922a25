"""Several weighted adapters per request: their identity, cached prefixes, refusals and residency."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.adapters.reference import AdapterMix
from contracts.errors import ContractError
from tests.worker_engine.conftest import EngineFactory, drain, request
from tests.worker_engine.tiny_adapter import adapter_ref, make_adapter
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.pool import AdapterPool
from worker_engine.errors import AdapterRefused

WEIGHTS = (0.7, -0.4, 1.5)


@pytest.fixture
def folders(tiny_model: Path, tmp_path: Path) -> list[Path]:
    """Adapters of different ranks and scalings; PEFT mixes only adapters of the same rsLoRA setting."""
    options: list[dict[str, Any]] = [
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        {"r": 7, "lora_alpha": 3, "target_modules": ["q_proj", "o_proj", "down_proj"]},
        {"r": 2, "lora_alpha": 9, "target_modules": ["gate_proj", "v_proj"]},
    ]
    return [make_adapter(tiny_model, tmp_path / str(i), seed=i, **option) for i, option in enumerate(options)]


def mix(folders: list[Path], weights: tuple[float, ...] = WEIGHTS) -> AdapterMix:
    return AdapterMix.from_list(
        [
            {"adapter": adapter_ref(folder).to_dict(), "weight": weight}
            for folder, weight in zip(folders, weights, strict=True)
        ]
    )


def loader(model: Path, cache: Path) -> AdapterLoader:
    return AdapterLoader(model, cache, dtype=torch.float32, device=torch.device("cpu"))


def test_identity_is_contents_and_weights_not_order(folders: list[Path]) -> None:
    backwards = AdapterMix(tuple(reversed(mix(folders).members)))
    again = AdapterMix.from_list(
        [{"adapter": ref.to_dict(), "weight": weight} for ref, weight in backwards.members]
    )
    assert again == mix(folders)
    digests = {mix(folders, weights).sha256 for weights in (WEIGHTS, (0.7, -0.4, 1.4), (0.7, 0.4, 1.5))}
    assert len(digests | {adapter_ref(folder).sha256 for folder in folders}) == 6


def test_a_prefix_computed_with_other_weights_is_not_found(
    tiny_model: Path, folders: list[Path], make_engine: EngineFactory, tmp_path: Path
) -> None:
    load, engine, prompt = loader(tiny_model, tmp_path / "c").load, make_engine(tiny_model), list(range(70))
    cached = []
    for weights in (WEIGHTS, WEIGHTS, (0.7, -0.4, 1.4)):
        engine.add_request(request("r", prompt, 1), load(mix(folders, weights)))
        cached.append(drain(engine)["r"][-1].cached_tokens)
    assert cached == [0, 64, 0]


def test_one_that_is_more_than_pairs_is_refused(
    tiny_model: Path, folders: list[Path], tmp_path: Path
) -> None:
    dora = make_adapter(tiny_model, tmp_path / "d", seed=9, r=2, use_dora=True, target_modules=["q_proj"])
    with pytest.raises(AdapterRefused, match=r"adapters\[\d\].*cannot be mixed"):
        loader(tiny_model, tmp_path / "c").load(mix([folders[0], dora], (1.0, 1.0)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "1 to 8"),
        ("x", "1 to 8"),
        ([{"weight": 1}], r"adapters\[0\] must be an object"),
        ([{"adapter": {}, "weights": 1}], r"adapters\[0\].weights is not a known field"),
        ([{"adapter": {}, "weight": "a"}], r"adapters\[0\].weight must be a number"),
        ([{"adapter": {}, "weight": float("nan")}], r"adapters\[0\].weight must be a number"),
        ([{"adapter": {}}], r"adapters\[0\].adapter.name must be"),
    ],
)
def test_a_malformed_mix_is_refused_by_field(value: object, reason: str) -> None:
    with pytest.raises(ContractError, match=reason):
        AdapterMix.from_list(value)


def test_a_mix_needs_no_room_for_its_members(tiny_model: Path, folders: list[Path], tmp_path: Path) -> None:
    """Two mixes that wait for each other's members would wait for ever."""
    load = loader(tiny_model, tmp_path / "c")
    nbytes = load.load(mix(folders)).nbytes

    async def run() -> None:
        pool = AdapterPool(load, max_bytes=nbytes)
        async with pool.acquire(mix(folders)) as adapter:
            assert (adapter.sha256, pool.num_resident) == (mix(folders).sha256, 1)
        async with pool.acquire(mix(folders, (1.0, 1.0, 1.0))):
            assert pool.num_resident == 1

    asyncio.run(run())


def test_a_pinned_adapter_stays_and_blocks_nobody_for_ever(
    tiny_model: Path, folders: list[Path], tmp_path: Path
) -> None:
    load, refs = loader(tiny_model, tmp_path / "c"), [adapter_ref(folder) for folder in folders]
    nbytes = [load.load(ref).nbytes for ref in refs]

    async def run() -> None:
        pool = AdapterPool(load, max_bytes=sum(nbytes) - 1)
        await pool.pin(refs[0])
        for ref in (*refs, *refs):
            async with pool.acquire(ref):
                assert refs[0].sha256 in pool._resident
        assert pool.num_resident < len(refs), "nothing had to leave: this proves nothing"
        with pytest.raises(AdapterRefused, match="pinned adapters would take"):
            await pool.pin(refs[1])
        assert (pool.unpin(refs[0].sha256), pool.unpin(refs[0].sha256)) == (True, False)
        full = AdapterPool(load, max_bytes=nbytes[0] + nbytes[2])
        await full.pin(refs[0])
        with pytest.raises(AdapterRefused, match="beside pinned ones"):
            async with full.acquire(refs[1]):
                pass

    asyncio.run(run())
