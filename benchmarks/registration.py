"""Registration by headers: a 70B base, an adapter with 37,000 tensors, and headers of up to 100 MB.

Each case is measured in a process of its own, and so is its peak of memory beyond the imported product.
Weights are holes in sparse files: registration reads configurations and headers.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure, compared
from benchmarks.processes import run_python

RUNS: Final = 5
_LIMITS_S: Final = {"base_70b": 2.0, "adapter_37k": 5.0}
_LIMIT_MIB: Final = 300
_HUGE: Final = 100 << 20
"""Bytes of the header that is refused."""
_LONGEST: Final = 16 << 20
_WEIGHTS: Final = "adapter_model.safetensors"
Shape = tuple[int, ...]


def run() -> Iterator[Figure]:
    """Yield the median seconds of each case and its memory, beside the bounds."""
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    for case, (write, measured) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            found = json.loads(run_python(environ, "-m", "benchmarks.registration", case, folder))
        note = f"{measured.__doc__} {found['note']}"
        bound = _LIMITS_S.get(case)
        if bound is None:
            yield Figure("registration", f"{case}_s", round(found["seconds"], 4), "s", note=note)
        else:
            yield compared(
                "registration",
                f"{case}_s",
                found["seconds"],
                "s",
                baseline=bound,
                goal=1,
                less_is_better=True,
                note=note,
            )
        yield compared(
            "registration",
            f"{case}_peak_mib",
            found["peak_mib"],
            "MiB",
            baseline=_LIMIT_MIB,
            goal=1,
            less_is_better=True,
            note="beyond the imported product",
        )


def _write_base_70b(folder: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 131_072,
        "dtype": "bfloat16",
        "model_type": "llama",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = _llama_70b()
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for number in range(30):
        name = f"model-{number + 1:05}-of-00030.safetensors"
        _write(folder / name, {key: tensors[key] for key in names[number::30]})
        weight_map |= dict.fromkeys(names[number::30], name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def base_70b(folder: Path) -> str:
    """Llama 3 70B in bf16: 30 files with 723 tensors."""
    from controlplane.catalog.checkpoint import read_checkpoint
    from controlplane.catalog.checkpoint_sources import checkpoint_source

    return f"{len(read_checkpoint(checkpoint_source(folder)).modules)} modules."


def _write_adapter_37k(folder: Path) -> None:
    base = dict(_qwen3_30b())
    pairs: dict[str, Shape] = {}
    for path, (out, inner) in base.items():
        pairs[f"base_model.model.{path}.lora_A.weight"] = (32, inner)
        pairs[f"base_model.model.{path}.lora_B.weight"] = (out, 32)
    _write(folder / _WEIGHTS, pairs)
    kinds = sorted({path.rpartition(".")[2] for path in base})
    config = {"peft_type": "LORA", "r": 32, "lora_alpha": 32, "target_modules": kinds}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "base.json").write_text(json.dumps(base))


def adapter_37k(folder: Path) -> str:
    """Rank 32 on every layer and on each of the 128 experts of Qwen3-30B-A3B's 48 layers."""
    from contracts.adapters.config import LoraConfig
    from controlplane.adapters.tensors import check_tensors
    from controlplane.catalog.safetensors_header import read_header

    base = json.loads((folder / "base.json").read_text())  # as the database's driver parses it
    size = (folder / _WEIGHTS).stat().st_size
    with (folder / _WEIGHTS).open("rb") as stream:
        header = read_header(stream, size=size)
    config = LoraConfig.from_bytes((folder / "adapter_config.json").read_bytes())
    needs, _, _ = check_tensors(header, config, base)
    return f"{len(header.tensors)} tensors, {size / 1e9:.2f} GB, traits {sorted(needs.traits)}."


def _write_header_100mb(folder: Path) -> None:
    with (folder / _WEIGHTS).open("wb") as stream:
        stream.write(_HUGE.to_bytes(8, "little"))
        stream.truncate(8 + _HUGE)


def header_100mb(folder: Path) -> str:
    """A file whose header claims 100 MiB."""
    from controlplane.catalog.safetensors_header import HeaderError, read_header

    with (folder / _WEIGHTS).open("rb") as stream:
        try:
            read_header(stream, size=8 + _HUGE)
        except HeaderError as error:
            return f"Refused: {error}."
    raise AssertionError("the header was read")


def _write_header_16mb(folder: Path) -> None:
    entry = '"layers.{:06}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}}'
    count = _LONGEST // 84
    text = ("{" + ",".join(entry.format(at, at, at + 1) for at in range(count)) + "}").encode()
    (folder / _WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + bytes(count))


def header_16mb(folder: Path) -> str:
    """The longest header that is read."""
    from controlplane.catalog.safetensors_header import read_header

    with (folder / _WEIGHTS).open("rb") as stream:
        header = read_header(stream, size=(folder / _WEIGHTS).stat().st_size)
    return f"{header.data_start / 2**20:.1f} MiB, {len(header.tensors)} tensors."


CASES: Final[Mapping[str, tuple[Callable[[Path], None], Callable[[Path], str]]]] = {
    "base_70b": (_write_base_70b, base_70b),
    "adapter_37k": (_write_adapter_37k, adapter_37k),
    "header_100mb": (_write_header_100mb, header_100mb),
    "header_16mb": (_write_header_16mb, header_16mb),
}
"""What writes the files of a case, and what is measured."""


def _llama_70b() -> dict[str, Shape]:
    tensors: dict[str, Shape] = {"model.embed_tokens.weight": (128_256, 8192), "model.norm.weight": (8192,)}
    for layer in range(80):
        path = f"model.layers.{layer}."
        tensors |= {
            f"{path}self_attn.q_proj.weight": (8192, 8192),
            f"{path}self_attn.k_proj.weight": (1024, 8192),
            f"{path}self_attn.v_proj.weight": (1024, 8192),
            f"{path}self_attn.o_proj.weight": (8192, 8192),
            f"{path}mlp.gate_proj.weight": (28_672, 8192),
            f"{path}mlp.up_proj.weight": (28_672, 8192),
            f"{path}mlp.down_proj.weight": (8192, 28_672),
            f"{path}input_layernorm.weight": (8192,),
            f"{path}post_attention_layernorm.weight": (8192,),
        }
    return {**tensors, "lm_head.weight": (128_256, 8192)}


def _qwen3_30b() -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the adapted modules' paths and (out, in)."""
    for layer in range(48):
        path = f"model.layers.{layer}."
        for name, out, inner in (("q", 4096, 2048), ("k", 512, 2048), ("v", 512, 2048), ("o", 2048, 4096)):
            yield f"{path}self_attn.{name}_proj", (out, inner)
        for expert in range(128):
            yield f"{path}mlp.experts.{expert}.gate_proj", (768, 2048)
            yield f"{path}mlp.experts.{expert}.up_proj", (768, 2048)
            yield f"{path}mlp.experts.{expert}.down_proj", (2048, 768)


def _write(path: Path, shapes: Mapping[str, Shape]) -> None:
    """Write a safetensors file of bf16 zeros as a sparse file."""
    entries: dict[str, Any] = {}
    reached = 0
    for name, shape in shapes.items():
        end = reached + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [reached, end]}
        reached = end
    text = json.dumps(entries).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + reached)


def _measure(case: str, folder: Path) -> dict[str, Any]:
    """Return the median seconds, the peak of memory beyond the imported product, and a note."""
    import django

    django.setup()
    for name in ("controlplane.adapters.tensors", "controlplane.catalog.checkpoint", "re2"):
        importlib.import_module(name)
    before = _peak_mib()
    took: list[float] = []
    note = ""
    for _ in range(RUNS):
        start = time.perf_counter()
        note = CASES[case][1](folder)
        took.append(time.perf_counter() - start)
    return {"seconds": statistics.median(took), "peak_mib": _peak_mib() - before, "note": note}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]))))
