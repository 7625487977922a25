"""Models with experts: bits that no neighbour changes, refusals by name, and the bytes of adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.adapters import file_limit
from contracts.adapters.reference import AdapterMix
from contracts.capabilities.worker import SPARSE
from kernels import native
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import CPU, draw, load, logits
from tests.worker_engine.quantized_case import write_quantized
from tests.worker_engine.sagemaker.conftest import Container
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_engine.tiny_sparse import (
    EXPERTS,
    HIDDEN,
    HOLDER,
    INTER,
    write_linear_adapter,
    write_sparse,
    write_stacked_adapter,
)
from tests.worker_process import run_worker
from worker_engine import model_runner
from worker_engine.adapters import loader
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.adapters.page_layout import PageLayout
from worker_engine.adapters.stacked_experts import is_exchanged, split_halves, stacked_pair
from worker_engine.errors import AdapterRefused, ConfigError
from worker_engine.models import FAMILIES, load_config
from worker_engine.models.sparse import SparseLayer


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse(tmp_path_factory.mktemp("sparse"))


def loaded(base: Path, folder: Path, cache: Path, dtype: torch.dtype = torch.float32) -> Adapter:
    return AdapterLoader(base, cache, dtype=dtype, device=CPU).load(adapter_ref(folder))


@pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
def test_bf16_logits_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Bit for bit: base rows beside adapters' rows, and an adapter's rows beside the others'."""
    base = write_sparse(tmp_path / "base", dtype="bfloat16")
    folders = [
        write_stacked_adapter(tmp_path / "stacked", seed=1),
        write_stacked_adapter(tmp_path / "other", seed=2, rank=3),
        write_linear_adapter(tmp_path / "router", f"{HOLDER}.gate"),
    ]
    owners: list[Adapter | None] = [loaded(base, path, tmp_path / "c", torch.bfloat16) for path in folders]
    owners.append(None)
    model, kv = load(base, torch.bfloat16)
    prompts = draw((35, 22, 9, 40))
    for step in (1, 64):
        held = AdapterBatch(load_config(base), dtype=torch.bfloat16)
        together = logits(model, kv, prompts, step, held, owners)
        for prompt, owner, beside in zip(prompts, owners, together, strict=True):
            alone = AdapterBatch(load_config(base), dtype=torch.bfloat16)
            assert torch.equal(logits(model, kv, [prompt], step, alone, [owner])[0], beside)
        assert torch.equal(logits(model, kv, [prompts[3]], step)[0], together[3]), "a base row"


def test_the_capability_names_the_families_with_experts() -> None:
    assert set(SPARSE) == {name for name, family in FAMILIES.items() if issubclass(family.layer, SparseLayer)}


def test_experts_count_as_bytes_of_an_adapter(base: Path, tmp_path: Path) -> None:
    """In the pool of host memory, and in the pages of the engine's pool."""
    rank = 5
    adapter = loaded(base, write_stacked_adapter(tmp_path / "a", seed=1, rank=rank), tmp_path / "c")
    expected = 4 * EXPERTS * rank * ((HIDDEN + 2 * INTER) + (INTER + HIDDEN))
    assert adapter.nbytes == expected
    assert adapter.buffer is not None
    assert adapter.buffer.nbytes == expected, "one copy, and all of it"


def test_the_limit_of_a_file_grows_with_the_experts(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_stacked_adapter(tmp_path / "a", seed=1, rank=64)
    monkeypatch.setattr(file_limit, "MAX_ADAPTER_BYTES", 1)
    assert loaded(base, folder, tmp_path / "c").nbytes > 0
    monkeypatch.setattr(loader, "DEFAULT_RANK", 1)
    with pytest.raises(AdapterRefused, match=r"adapter_model.safetensors is larger than \d+ bytes"):
        loaded(base, folder, tmp_path / "d")


def test_a_block_diagonal_pair_is_split(base: Path, tmp_path: Path) -> None:
    a, b = torch.randn(EXPERTS, 6, HIDDEN), torch.randn(EXPERTS, 6, 2 * INTER)
    assert split_halves(a, b) is None
    b[:, :3, INTER:] = 0.0
    assert split_halves(a, b) is None, "the gate alone is zero for up's ranks"
    b[:, 3:, :INTER] = 0.0
    halves = split_halves(a, b)
    assert halves is not None
    (gate_a, gate_b), (up_a, up_b) = halves
    whole = torch.einsum("eri,ero->eoi", a, b)
    apart = [torch.einsum("eri,ero->eoi", *half) for half in ((gate_a, gate_b), (up_a, up_b))]
    assert torch.allclose(torch.cat(apart, dim=1), whole)
    assert split_halves(a[:, :5], b[:, :5]) is None, "an odd rank has no halves"


def test_columns_of_b_are_rank_major() -> None:
    """Column `j * experts + expert`: reading them expert by expert gives another adapter."""
    a, b = torch.randn(3 * 2, 4), torch.randn(5, 2 * 3)
    of_a, of_b = stacked_pair(a, b, 3, exchanged=False)
    assert torch.equal(of_a[1], a[2:4])
    assert torch.equal(of_b[1].T, b[:, [1, 4]])
    of_b, of_a = stacked_pair(a, b, 3, exchanged=True)
    assert torch.equal(of_a[1], a[2:4])
    assert torch.equal(of_b[1].T, b[:, [1, 4]])


@pytest.mark.parametrize(("version", "exchanged"), [("0.18.1", True), ("0.19.0", False), ("1.0.0", False)])
def test_pefts_version_tells_the_sides_of_square_matrices(version: str, exchanged: bool) -> None:
    a, b = torch.zeros(4, 8), torch.zeros(8, 4)
    assert is_exchanged(a, b, (8, 8), {"peft_version": version}) is exchanged
    assert is_exchanged(a, b, (8, 8), {"peft_version": version}, transposed=True) is not exchanged


def test_an_adapter_of_square_experts_without_a_version_is_refused() -> None:
    for raw in ({}, {"peft_version": "newest"}):
        with pytest.raises(ValueError, match="state the version of PEFT"):
            is_exchanged(torch.zeros(4, 8), torch.zeros(8, 4), (8, 8), raw)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (
            f"{HOLDER}.experts.1.up_proj",
            {"use_dora": True},
            "DoRA and biases of lora_B are not served on experts",
        ),
        (f"{HOLDER}.gate", {"target_modules": ["gate_proj"]}, "target_modules does not name"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    base: Path, tmp_path: Path, path: str, options: dict[str, Any], message: str
) -> None:
    folder = write_linear_adapter(tmp_path / "a", path, **options)
    with pytest.raises(AdapterRefused, match=message):
        loaded(base, folder, tmp_path / "c")


def test_merged_mode_and_other_devices_are_refused_by_name(
    base: Path, make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"--merge-adapter auto is not served for Qwen2MoeForCausalLM"):
        make_engine(base, merge_adapter="auto")
    monkeypatch.setattr(model_runner, "adapters_in_pages", lambda device: True)
    with pytest.raises(ConfigError, match="has experts, which this worker serves on the CPU only"):
        make_engine(base)


def test_a_model_with_experts_takes_the_cpu_unless_told_otherwise(
    base: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    sparse, dense = load_config(base), load_config(tiny_model)
    assert [model_runner.choose_device("auto", model).type for model in (sparse, dense)] == ["cpu", "cuda"]
    assert model_runner.choose_device("cuda", sparse).type == "cuda", "which the engine refuses by name"


def test_pages_have_no_place_for_experts(base: Path, tmp_path: Path) -> None:
    adapter = loaded(base, write_stacked_adapter(tmp_path / "a", seed=1), tmp_path / "c")
    with pytest.raises(AdapterRefused, match="served on the CPU only"):
        PageLayout.for_adapter(adapter, load_config(base), 1 << 16)


def test_a_mix_of_expert_adapters_is_the_sum(base: Path, tmp_path: Path) -> None:
    """Also of a pair on single experts' gate and up with one on both."""
    folders = [
        write_stacked_adapter(tmp_path / "a", seed=1),
        write_linear_adapter(tmp_path / "b", f"{HOLDER}.experts.2.up_proj"),
    ]
    loader = AdapterLoader(base, tmp_path / "c", dtype=torch.float32, device=CPU)
    refs = [adapter_ref(folder, name=name) for folder, name in zip(folders, "ab", strict=True)]
    mix = AdapterMix(((refs[0], 0.5), (refs[1], 2.0)))
    mixed, first, second = loader.load(mix), *(loader.load(ref) for ref in refs)
    key = "experts.2.gate_up_proj"
    assert torch.equal(mixed.layers[0][key].b, first.layers[0][key].b * 0.5)
    key = "experts.2.up_proj"
    assert torch.equal(mixed.layers[0][key].b, second.layers[0][key].b * 2.0)
    assert mixed.nbytes == first.nbytes + second.nbytes


def test_guessed_tokens_change_no_greedy_answer(
    base: Path, make_engine: EngineFactory, tmp_path: Path
) -> None:
    adapter = loaded(base, write_stacked_adapter(tmp_path / "a", seed=1), tmp_path / "c")
    answers = []
    for mode in ("off", "ngram"):
        engine = make_engine(base, max_num_seqs=4, speculation=mode)
        for name, owner in (("base", None), ("own", adapter)):
            engine.add_request(request(name, [7, 8, 9] * 6, 24), owner)
        found = drain(engine)
        answers.append([tokens(found[name]) for name in ("base", "own")])
        if mode == "ngram":
            assert engine.speculator is not None
            counts = engine.speculator.counts.by_adapter()
            assert sum(proposed for proposed, _ in counts.values()) > 0, "no token was guessed"
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1], "the adapter changes nothing"


@pytest.mark.parametrize("form", ["int4-32", "int8", "awq-64"])
def test_quantized_experts(base: Path, tmp_path: Path, form: str) -> None:
    """In fp32 as the dequantized checkpoint; in bf16 near it, by the native loops where there are any."""
    # The experts' down_proj has 32 inputs, no group of 64.
    skip = ("down_proj",) if form == "awq-64" else ()
    write_quantized(base, tmp_path / "q", tmp_path / "whole", form, skip=skip)
    prompts = draw((24, 7))
    wanted = torch.cat(logits(*load(tmp_path / "whole"), prompts, 64))
    assert torch.equal(torch.cat(logits(*load(tmp_path / "q"), prompts, 64)), wanted)
    near = torch.cat(logits(*load(tmp_path / "q", torch.bfloat16), prompts, 1))
    assert (near - wanted).abs().median() <= 0.05 * wanted.std()


@pytest.mark.costly("starts a worker process")
def test_adapters_on_experts_by_http(base: Path, tmp_path: Path) -> None:
    """Serve the base and adapters of two layouts, and refuse DoRA on an expert by name."""
    folders = [
        write_stacked_adapter(tmp_path / "stacked", seed=1),
        write_linear_adapter(tmp_path / "shared", f"{HOLDER}.shared_expert.down_proj"),
    ]
    refused = write_linear_adapter(tmp_path / "dora", f"{HOLDER}.experts.1.up_proj", use_dora=True)
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    (tmp_path / "w").mkdir()
    with run_worker(base, tmp_path / "w", "--memory-gib", "0.05") as process:
        container = Container(process, tmp_path / "w")
        texts = [container.call("POST", "/v1/completions", body | {"model": "tiny"})[2]["choices"][0]["text"]]
        for folder in folders:
            ref = adapter_ref(folder)
            own = body | {"model": ref.name, "adapter": ref.to_dict()}
            texts.append(container.call("POST", "/v1/completions", own)[2]["choices"][0]["text"])
        ref = adapter_ref(refused)
        own = body | {"model": ref.name, "adapter": ref.to_dict()}
        status, _, answer = container.call("POST", "/v1/completions", own)
    assert len(set(texts)) == 3, "each adapter changes the answer"
    assert status == 400
    assert "not served on experts" in answer["error"]["message"]
