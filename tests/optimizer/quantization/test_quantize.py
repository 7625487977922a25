"""Checkpoints quantized on tiny models: what comes out, what is refused, and that a killed run goes on."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from optimizer.quantization import Scheme, awq, job, layer, quantize
from optimizer.quantization.work import WorkFolder
from tests.worker_engine.forward_pass import draw, load, logits
from tests.worker_engine.tiny_model import (
    family_config,
    random_weights,
    randomize_vectors,
    tiny_config,
    write_checkpoint,
)
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.errors import OptimizationError
from worker_engine.models import load_config

SIZES: Final[dict[str, Any]] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.06,
    "tie_word_embeddings": False,
}
FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": tiny_config(**SIZES),
    "qwen2": family_config("qwen2", **SIZES),
    "gemma3": family_config("gemma3_text", **SIZES, query_pre_attn_scalar=32, sliding_window=64),
}
CPU: Final = torch.device("cpu")
LENGTHS: Final = (60, 9)


def written(folder: Path, family: str = "llama") -> Path:
    """A checkpoint some of whose channels are much larger than the others, as trained models have them."""
    config = FAMILIES[family]
    weights = random_weights(config, seed=5)
    gain = 0.0 if family == "gemma3" else 1.0
    randomize_vectors(weights, seed=6, scale=0.2, gain=gain, bias=gain)
    for name, value in weights.items():
        if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
            value[::9] = 6.0
    return write_checkpoint(folder, config, weights, dtype="bfloat16")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    source = random.Random(2)
    return ["".join(chr(source.randrange(97, 123)) for _ in range(700)) for _ in range(8)]


def silent(_phase: str, _fraction: float) -> None:
    pass


def whole(folder: Path) -> torch.Tensor:
    """The model's logits, in fp32."""
    model, kv = load(folder)
    return torch.cat(logits(model, kv, draw(LENGTHS), 64))


def strayed(made: Path, plain: Path) -> float:
    return float((whole(made) - whole(plain)).square().mean().sqrt())


@pytest.mark.parametrize("scheme", Scheme)
def test_what_comes_out_is_served(scheme: Scheme, plain: Path, texts: list[str], tmp_path: Path) -> None:
    told: list[float] = []
    quantize(plain, tmp_path / "out", scheme, texts, lambda _, fraction: told.append(fraction))
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()
    assert not list((tmp_path / "out").glob(".*"))
    spread = float(whole(plain).std())
    assert strayed(tmp_path / "out", plain) < spread * {"int8": 0.06, "fp8": 0.2, "awq_int3_g128": 0.8}.get(
        scheme, 0.6
    )
    quantization = load_config(tmp_path / "out").quantization
    assert quantization is not None
    linear = "model.layers.1.mlp.down_proj"
    found = quantization.scheme(linear)
    assert found is not None
    groups = {"int8": (8, 0), "fp8": (8, 0), "awq_int4_g64": (4, 64), "awq_int3_g128": (3, 64)}
    assert (found.bits, found.group) == groups.get(scheme, (4, 128))
    assert found.coding == ("e4m3" if scheme is Scheme.FP8 else "whole")
    with Checkpoint(tmp_path / "out", dtype=torch.float32, device=CPU, quantization=quantization) as made:
        codes = "weight" if scheme is Scheme.FP8 else "weight_packed"
        parts = ("qweight", "qzeros", "scales") if scheme.bits == 3 else (codes, "weight_scale")
        bytes_ = sum(made.stored(f"{linear}.{part}").nbytes for part in parts)
    assert bytes_ <= 64 * 128 * 2 * {8: 0.55, 4: 0.30, 3: 0.22}[scheme.bits]


def test_the_head_is_stored_as_it_was(plain: Path, tmp_path: Path) -> None:
    """Other readers get the same files whether the worker rounds the head or not; the worker does not."""
    quantize(plain, tmp_path / "stored", Scheme.INT8, (), silent)
    quantize(plain, tmp_path / "rounded", Scheme.INT8, (), silent, int8_head=True)
    for path in (tmp_path / "stored").iterdir():
        if path.name != "config.json":
            assert path.read_bytes() == (tmp_path / "rounded" / path.name).read_bytes()
    fields = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("stored", "rounded")]
    assert fields[1].pop("graftwork") == {"head": "int8"}
    assert fields[0] == fields[1]
    spread = float(whole(plain).std())
    assert 0 < strayed(tmp_path / "rounded", tmp_path / "stored") < spread * 0.02
    again = tmp_path / "again"
    with pytest.raises(OptimizationError, match="quantized already"):
        quantize(tmp_path / "rounded", again, Scheme.INT8, (), silent)


@pytest.mark.parametrize("family", FAMILIES)
def test_scales_cancel_in_every_family(
    family: str, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folded into norms (offsets, too), values' rows (grouped heads, biases) and up's, they change nothing:
    with scales at random and weights that keep their 16 bits, logits are those from before."""
    plain = written(tmp_path / "plain", family)
    drawn = torch.Generator().manual_seed(1)

    def any_scales(
        weight: torch.Tensor, *_: torch.Tensor, heads: tuple[int, int], group: int, bits: int
    ) -> torch.Tensor:
        return awq._shared(2 ** torch.randint(-2, 3, (weight.shape[1],), generator=drawn).float(), heads)

    def unpacked(self: layer.LayerQuantizer, tensors: layer.Tensors, moments: Any) -> layer.Tensors:
        made = dict(tensors)
        self._fold(made, moments)
        return {name: tensor.bfloat16() for name, tensor in made.items()}

    monkeypatch.setattr(awq, "best_scales", any_scales)
    monkeypatch.setattr(layer.LayerQuantizer, "make", unpacked)
    monkeypatch.setattr(job, "read_quantization", lambda _: None)
    quantize(plain, tmp_path / "out", Scheme.AWQ_INT4_G64, texts, silent)
    path = tmp_path / "out" / "config.json"
    fields = json.loads(path.read_text())
    del fields["quantization_config"]
    path.write_text(json.dumps(fields))
    # bf16 weights of another size are rounded elsewhere: a hundredth of the logits' spread.
    assert strayed(tmp_path / "out", plain) < 0.05 * float(whole(plain).std())


def test_awq_is_better_than_rounding(plain: Path, texts: list[str], tmp_path: Path) -> None:
    """On rows like those that it was calibrated on, and the model's large channels."""
    quantize(plain, tmp_path / "awq", Scheme.AWQ_INT4_G128, texts, silent)
    quantize(plain, tmp_path / "rtn", Scheme.RTN_INT4_G128, (), silent)
    assert strayed(tmp_path / "awq", plain) < 0.9 * strayed(tmp_path / "rtn", plain)


def test_three_bits_become_gptqs_files(plain: Path, texts: list[str], tmp_path: Path) -> None:
    """One group size for all modules, inputs in their order, and zeros that readers add one to."""
    quantize(plain, tmp_path / "out", Scheme.AWQ_INT3_G128, texts, silent)
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (section["quant_method"], section["bits"], section["group_size"]) == ("gptq", 3, 64)
    linear = "model.layers.1.mlp.down_proj"
    quantization = load_config(tmp_path / "out").quantization
    with Checkpoint(tmp_path / "out", dtype=torch.float32, device=CPU, quantization=quantization) as made:
        assert tuple(made.stored(f"{linear}.qweight").shape) == (128 * 3 // 32, 64)
        assert tuple(made.stored(f"{linear}.qzeros").shape) == (2, 64 * 3 // 32)
        assert made.stored(f"{linear}.scales").dtype == torch.float16
        assert made.stored(f"{linear}.g_idx").tolist() == [0] * 64 + [1] * 64
    quantize(plain, tmp_path / "four", Scheme.AWQ_INT4_G64, texts, silent)
    assert strayed(tmp_path / "four", plain) < strayed(tmp_path / "out", plain)


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop", [2, 3])
def test_an_interrupted_run_goes_on(stop: int, plain: Path, texts: list[str], tmp_path: Path) -> None:
    def stopping(phase: str, _fraction: float) -> None:
        if phase.startswith(f"layer {stop} "):
            raise Stop

    quantize(plain, tmp_path / "straight", Scheme.AWQ_INT4_G64, texts, silent)
    with pytest.raises(Stop):
        quantize(plain, tmp_path / "out", Scheme.AWQ_INT4_G64, texts, stopping)
    assert not (tmp_path / "out").exists()
    phases: list[str] = []
    quantize(plain, tmp_path / "out", Scheme.AWQ_INT4_G64, texts, lambda phase, _: phases.append(phase))
    assert [phase.endswith("which is there") for phase in phases[1:4]] == [at < stop for at in (1, 2, 3)]
    for path in (tmp_path / "straight").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert not (tmp_path / ".out.quantizing").exists()


@pytest.mark.costly("quantizes a model in a process")
def test_a_killed_process_leaves_no_output(plain: Path, tmp_path: Path) -> None:
    script = (
        "import sys, os, signal; from pathlib import Path\n"
        "from optimizer.quantization import Scheme, quantize\n"
        "def told(phase, _):\n"
        "    if phase.startswith('layer 3 '): os.kill(os.getpid(), signal.SIGKILL)\n"
        "quantize(Path(sys.argv[1]), Path(sys.argv[2]), Scheme.INT8, (), told)\n"
    )
    command = [sys.executable, "-c", script, str(plain), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    kept = tmp_path / ".out.quantizing" / "layers" / "00001" / "model.safetensors"
    before = kept.stat().st_ino
    phases: list[str] = []
    quantize(plain, tmp_path / "out", Scheme.INT8, (), lambda phase, _: phases.append(phase))
    assert [phase.endswith("which is there") for phase in phases[:3]] == [True, True, False]
    assert before in {path.stat().st_ino for path in (tmp_path / "out").iterdir()}


def test_another_orders_work_is_not_taken_up(plain: Path, texts: list[str], tmp_path: Path) -> None:
    def stopping(phase: str, _fraction: float) -> None:
        if phase.startswith("layer 2 "):
            raise Stop

    with pytest.raises(Stop):
        quantize(plain, tmp_path / "out", Scheme.RTN_INT4_G128, texts, stopping)
    phases: list[str] = []
    quantize(plain, tmp_path / "out", Scheme.INT8, texts, lambda phase, _: phases.append(phase))
    assert not any(phase.endswith("which is there") for phase in phases)


def refused(
    code: str, message: str, source: Path, output: Path, scheme: Scheme, texts: Sequence[str]
) -> None:
    with pytest.raises(OptimizationError, match=message) as told:
        quantize(source, output, scheme, texts, silent)
    assert told.value.code == code


def test_refusals(plain: Path, texts: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused("bad_data", "1 calibration texts have 700 tokens", plain, out, Scheme.AWQ_INT4_G64, texts[:1])
    out.mkdir()
    refused("output_exists", "is there already", plain, out, Scheme.INT8, ())
    out.rmdir()
    quantize(plain, out, Scheme.INT8, (), silent)
    refused("unsupported_model", "quantized already", out, tmp_path / "twice", Scheme.INT8, ())
    odd = shutil.copytree(plain, tmp_path / "odd")
    fields = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(fields | {"architectures": ["FooForCausalLM"]}))
    refused("unsupported_model", "FooForCausalLM.*is not served", odd, tmp_path / "o", Scheme.INT8, ())
    (odd / "config.json").write_text(json.dumps(fields | {"intermediate_size": 100}))
    refused("unsupported_model", "down_proj has 100 inputs", odd, tmp_path / "o", Scheme.RTN_INT4_G128, ())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd", "out"]


def test_out_of_disk(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told beforehand where it can be; in mid-way finished layers stay, and room later is enough."""
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
        refused("out_of_disk", "has 1 MiB free, 6. are needed", plain, tmp_path / "out", Scheme.INT8, ())
    with monkeypatch.context() as patch:
        real, calls = os.fsync, [0]

        def full(file: int) -> None:
            calls[0] += 1
            if calls[0] == 4:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(file)

        patch.setattr(os, "fsync", full)
        refused("out_of_disk", "no room for .*00002", plain, tmp_path / "out", Scheme.INT8, ())
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("*.part"))
    phases: list[str] = []
    quantize(plain, tmp_path / "out", Scheme.INT8, (), lambda phase, _: phases.append(phase))
    assert sum(phase.endswith("which is there") for phase in phases) == 2
    assert math.isfinite(strayed(tmp_path / "out", plain))


def test_who_was_faster_is_not_overwritten(plain: Path, tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out", {})
    work.write_rest({"a": torch.ones(1)})
    (tmp_path / "out").mkdir()
    with pytest.raises(OptimizationError, match="came to be meanwhile"):
        work.finish({}, 0, [])
    assert list((tmp_path / "out").iterdir()) == []
