"""Decode steps of the whole engine on random weights, quantized and not, alone and with adapters."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from benchmarks.gpu.engine_load import Load
from benchmarks.gpu.parts.engine import adapter_of
from benchmarks.gpu.quantized_rows import FORMS, QUICK_FORMS, Form
from benchmarks.gpu.random_model import StepBytes, build_engine, latest_engine
from benchmarks.gpu.task import Bench, Row
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.engine import Engine

WHOLE: Final = "bf16"
"""In a form's place: weights that are not quantized."""
RANK: Final = 16
PILOT_OUT: Final = 12


@dataclass(frozen=True, slots=True)
class Decode:
    """One row.

    Attributes:
        form: of the weights, or `WHOLE`.
        adapters: that requests take in turn, on all linear layers; 0 for the base alone.
    """

    form: str
    batch: int
    adapters: int = 0
    prompt_tokens: int = 256
    out_tokens: int = 96

    @property
    def key(self) -> str:
        what = f".{self.adapters}_adapters" if self.adapters else ""
        return f"quantization.decode.{self.form}{what}.batch_{self.batch}"


def config_of(form: Form) -> dict[str, Any]:
    """config.json's quantization_config of such weights, as compressed-tensors writes it."""
    kind = "int" if form.coding == "whole" else "float"
    group: dict[str, Any] = {"targets": ["Linear"]}
    if form.coding == "e4m3":
        shared = {"num_bits": 8, "type": kind, "symmetric": True}
        group["weights"] = shared | {"strategy": "channel", "dynamic": False}
        group["input_activations"] = shared | {"strategy": "token", "dynamic": True}
    else:
        group["weights"] = {
            "num_bits": 4,
            "type": kind,
            "strategy": "group",
            "group_size": form.group,
            "dynamic": False,
            "symmetric": not form.zeros,
        }
    named = {"whole": "pack-quantized", "e4m3": "float-quantized", "e2m1": "mxfp4-pack-quantized"}
    return {
        "quant_method": "compressed-tensors",
        "format": named[form.coding],
        "config_groups": {"group_0": group},
    }


def _engine(bench: Bench, name: str) -> tuple[Engine, ModelConfig]:
    forms = {form.name: form for form in (QUICK_FORMS if bench.quick else FORMS)}
    build = partial(
        build_engine,
        bench.quick,
        bench.device,
        quantization=config_of(forms[name]) if name != WHOLE else None,
        max_model_len=128 if bench.quick else 1024,
        memory_gib=0.02 if bench.quick else 8.0,
        max_num_seqs=64,
        cuda_graphs="lazy",
    )
    return latest_engine(name, build)


def run(bench: Bench, decode: Decode) -> Row:
    """A pilot that compiles and captures, then the measured load."""
    engine, model = _engine(bench, decode.form)
    plain = replace(model, quantization=None)  # adapters are the same on every form of the base
    adapters = [adapter_of(index, RANK, "all", plain, bench.device) for index in range(decode.adapters)]
    asked = engine, model, adapters, decode.batch, decode.prompt_tokens
    Load(*asked, min(PILOT_OUT, decode.out_tokens), f"{decode.key}.pilot").run(decode.batch)
    load = Load(*asked, decode.out_tokens, f"{decode.key}.load")
    load.run(decode.batch)
    steps = load.decode_steps
    row = {"kernels": dict(engine.kernels), **load.figures(), "decode_steps": len(steps)}
    if not steps:
        return row
    step_us = statistics.median(step.seconds for step in steps) * 1e6
    needs = StepBytes.for_model(model)
    size = statistics.median(needs.of_step(step.contexts, step.adapter_bytes) for step in steps)
    roofline = bench.ceilings.roofline_us(size, 0)
    return row | {
        "decode_step_us": round(step_us, 1),
        "base_bytes": needs.base,
        "step_bytes": round(size),
        "step_roofline_us": round(roofline, 1),
        "step_roofline_ratio": round(step_us / roofline, 3),
    }
