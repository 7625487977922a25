"""The demo model in 8 and 4 bits beside bf16, in one run: sizes, perplexity and decode speed."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open

from benchmarks.engine.adapter_cost import decode_ms
from benchmarks.engine.adapters import make_adapters
from benchmarks.engine.in_process import InProcess
from benchmarks.figure import Figure, compared
from benchmarks.optimization.perplexity import perplexity
from optimizer.quantization import Scheme, quantize
from worker_engine.adapters.adapter import Adapter
from worker_engine.checkpoint.quantization_config import OWN_SECTION

TEXTS: Final = Path(__file__).resolve().parents[1] / "texts"
SIZE_GOALS: Final = {8: 0.55, 4: 0.30, 3: 0.24}
PERPLEXITY_GOALS: Final = {Scheme.INT8: 1.03, Scheme.AWQ_INT4_G64: 1.10, Scheme.AWQ_INT4_G128: 1.10}
STORED_HEAD: Final = "_stored_head"
"""Ends the names of those whose head stays in bf16; recipes of int8 for CPUs have it in 8 bits."""
SPEED_GOAL: Final = 1.4
"""Of 8 bits at one stream."""
STREAMS: Final = (1, 8, 32)
ROUNDS: Final = 5
TOKENS: Final = 12_288
"""Of the held-out text."""


def texts(name: str) -> list[str]:
    """The messages of one of the bundled files."""
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8").split("\n\n")


def quantization(model: Path, *, quick: bool) -> Iterator[Figure]:
    schemes = [scheme for scheme in Scheme if not (quick and scheme is Scheme.AWQ_INT4_G128)]
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        made = {scheme: Path(scratch) / scheme for scheme in schemes}
        for scheme, folder in made.items():
            quantize(
                model, folder, scheme, texts("calibration"), lambda _phase, _fraction: None, int8_head=True
            )
            yield _size(scheme, folder)
        stored = {scheme: _with_stored_head(made[scheme]) for scheme in (Scheme.INT8, Scheme.AWQ_INT4_G64)}
        yield from _perplexities(model, made, stored, TOKENS // 3 if quick else TOKENS)
        speeds = {
            "bf16": model,
            "int8": made[Scheme.INT8],
            f"int8{STORED_HEAD}": stored[Scheme.INT8],
            "int4": made[Scheme.AWQ_INT4_G64],
            f"int4{STORED_HEAD}": stored[Scheme.AWQ_INT4_G64],
        }
        yield from _speeds(speeds, STREAMS[:1] if quick else STREAMS, Path(scratch))


def _with_stored_head(folder: Path) -> Path:
    """The same files under another config.json."""
    copy = folder.with_name(f"{folder.name}{STORED_HEAD}")
    copy.mkdir()
    for path in folder.iterdir():
        os.link(path, copy / path.name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config[OWN_SECTION]
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return copy


def _size(scheme: Scheme, folder: Path) -> Figure:
    """Bytes of the quantized modules, scales and zeros too."""
    stored = plain = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                _, _, part = name.rpartition(".")
                if not part.startswith("weight"):
                    continue
                tensor: torch.Tensor = file.get_tensor(name)
                if part == "weight_shape":
                    plain += 2 * int(tensor.prod())
                elif part == "weight":
                    # 8-bit floats are stored in their own shape; the others are what was not quantized.
                    if tensor.dtype is not torch.float8_e4m3fn:
                        continue
                    plain += 2 * tensor.numel()
                stored += tensor.nbytes
    return compared(
        "optimization",
        f"size_{scheme}",
        stored / 1e6,
        "MB",
        baseline=plain / 1e6,
        goal=SIZE_GOALS[scheme.bits],
        less_is_better=True,
        note="the quantized linear layers beside bf16",
    )


def _perplexities(
    model: Path, made: Mapping[Scheme, Path], stored: Mapping[Scheme, Path], most: int
) -> Iterator[Figure]:
    held_out = texts("held_out")
    before = perplexity(model, held_out, most=most)
    found = {scheme: perplexity(folder, held_out, most=most) for scheme, folder in made.items()}
    for scheme, value in found.items():
        yield compared(
            "optimization",
            f"perplexity_{scheme}",
            value,
            "",
            baseline=before,
            goal=PERPLEXITY_GOALS.get(scheme),
            less_is_better=True,
            note=f"held-out text, {most} tokens, beside bf16",
        )
    for scheme, folder in stored.items():
        yield compared(
            "optimization",
            f"perplexity_{scheme}{STORED_HEAD}",
            perplexity(folder, held_out, most=most),
            "",
            baseline=before,
            less_is_better=True,
            note=f"held-out text, {most} tokens, beside bf16",
        )
    awq = Scheme.AWQ_INT4_G128 if Scheme.AWQ_INT4_G128 in found else Scheme.AWQ_INT4_G64
    yield compared(
        "optimization",
        "perplexity_awq_beside_rounding",
        found[awq],
        "",
        baseline=found[Scheme.RTN_INT4_G128],
        goal=0.999,
        less_is_better=True,
        note=f"{awq} beside {Scheme.RTN_INT4_G128}; inputs that 128 does not divide: groups of 64 in both",
    )


def _speeds(models: Mapping[str, Path], streams: tuple[int, ...], scratch: Path) -> Iterator[Figure]:
    processes = {name: InProcess(folder) for name, folder in models.items()}
    paths = [item.folder for item in make_adapters(scratch / "adapters", max(streams))]
    adapters = {name: [process.load(path) for path in paths] for name, process in processes.items()}
    for count in streams:
        for kind in ("base", "adapters"):
            times: dict[str, list[float]] = {name: [] for name in models}
            for _ in range(ROUNDS + 1):
                for name, process in processes.items():
                    rows: list[Adapter | None] = [None] * count
                    if kind == "adapters":
                        rows = list(adapters[name][:count])
                    times[name].append(decode_ms(process, rows))
            step = {name: statistics.median(taken[1:]) for name, taken in times.items()}
            for name in list(models)[1:]:
                yield compared(
                    "optimization",
                    f"decode_{name}_{count}_streams_{kind}",
                    1e3 * count / step[name],
                    "token/s",
                    baseline=1e3 * count / step["bf16"],
                    goal=SPEED_GOAL if (name, count, kind) == ("int8", 1, "base") else None,
                    note=f"a step of {step[name]:.2f} ms beside {step['bf16']:.2f}, in turn; "
                    + ("an adapter of rank 8 a stream" if kind == "adapters" else "no adapters"),
                )
