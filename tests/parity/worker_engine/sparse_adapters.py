"""Random adapters on models with experts, and what each adds to transformers' parameters.

The formulas are written out here, from the layouts of the files alone. They judge the files that PEFT does
not load, or of which it drops a part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from tests.parity import references

PREFIX: Final = "base_model.model."
Tensors = dict[str, torch.Tensor]
_ATTENTION: Final = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_NAMES: Final = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


@dataclass
class Written:
    """An adapter's tensors, and the change of each of transformers' parameters."""

    model: Any
    tensors: Tensors = field(default_factory=dict)
    changes: Tensors = field(default_factory=dict)
    source: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(3))

    def pair(self, path: str, rank: int, inner: int, out: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw A [rank, inner] and B [out, rank] into the file."""
        a = torch.randn(rank, inner, generator=self.source) * inner**-0.5
        b = torch.randn(out, rank, generator=self.source) * 0.3
        self.tensors |= {f"{PREFIX}{path}.lora_A.weight": a, f"{PREFIX}{path}.lora_B.weight": b}
        return a, b

    def change(self, name: str) -> torch.Tensor:
        """Return the change of a parameter, to be added to in place."""
        return self.changes.setdefault(name, torch.zeros_like(self.model.get_parameter(name)))

    def experts(self, holder: str, parameter: str) -> torch.Tensor:
        """Return the change of a parameter of all experts as [experts, out, in]."""
        change = self.change(f"{holder}.experts.{parameter}")
        return change.mT if self.transposed else change

    @property
    def transposed(self) -> bool:
        """True if transformers holds the experts as [experts, in, out]."""
        return "Llama4" in type(self.model).__name__

    def linear(self, path: str, rank: int, scaling: float) -> None:
        """LoRA on a linear module, or on the router, that transformers has at the same path."""
        out, inner = self.model.get_parameter(f"{path}.weight").shape
        a, b = self.pair(path, rank, inner, out)
        self.change(f"{path}.weight").add_(scaling * b @ a)

    def expert(
        self, holder: str, number: int, name: str, rank: int, scaling: float, *, saved: str = ""
    ) -> None:
        """LoRA on one projection of one expert; `saved` is the file's name of the layer's feed-forward."""
        kind = _NAMES.get(name, name)
        parameter = "down_proj" if kind == "down_proj" else "gate_up_proj"
        target = self.experts(holder, parameter)[number]
        if kind != "down_proj":
            target = target.chunk(2)[kind == "up_proj"]
        out, inner = target.shape
        a, b = self.pair(f"{saved or holder}.experts.{number}.{name}", rank, inner, out)
        target.add_(scaling * b @ a)

    def stack(
        self, holder: str, parameter: str, suffix: str, rank: int, scaling: float, *, exchanged: bool
    ) -> None:
        """LoRA on all experts; `exchanged` with A on the outputs, as PEFT before 0.19 wrote it mostly."""
        change = self.experts(holder, parameter)
        experts, out, inner = change.shape
        wide, narrow = (out, inner) if exchanged else (inner, out)
        a, b = self.pair(f"{holder}.experts{suffix}", experts * rank, wide, narrow)
        for expert in range(experts):
            a_of = a[expert * rank : (expert + 1) * rank]
            b_of = b[:, expert::experts]
            product = b_of @ a_of
            change[expert] += scaling * (product.T if exchanged else product)

    def save(self, folder: Path, **config: Any) -> Path:
        folder.mkdir(parents=True)
        save_file(self.tensors, folder / "adapter_model.safetensors")
        value = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "peft_version": "0.21.2"} | config
        (folder / "adapter_config.json").write_text(json.dumps(value))
        return folder

    def reference(self) -> Any:
        """Return transformers' model with the adapter added to its weights."""
        changed = deepcopy(self.model)
        with torch.no_grad():
            for name, change in self.changes.items():
                changed.get_parameter(name).add_(change)
        return changed


def sparse_layers(model: Any) -> Iterator[str]:
    """Yield the paths of the feed-forwards that have experts."""
    for path in feed_forwards(model):
        if hasattr(model.get_submodule(path), "experts"):
            yield path


def feed_forwards(model: Any) -> Iterator[str]:
    """Yield the path of each layer's feed-forward."""
    for index, layer in enumerate(model.model.layers):
        yield f"model.layers.{index}.{'mlp' if hasattr(layer, 'mlp') else 'feed_forward'}"


def write_single(model: Any, folder: Path) -> Written:
    """Write single experts' pairs as transformers 4 and Megatron do; PEFT drops a part of such files.

    Some experts and projections are absent, ranks differ, and router, shared expert and dense layers are
    in the file as well.
    """
    made = Written(model)
    mixtral = "Mixtral" in type(model).__name__
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    router = "gate" if not made.transposed else "router"
    kinds = [*names, router]
    for holder in sparse_layers(model):
        saved = holder.replace("mlp", "block_sparse_moe") if mixtral else holder
        made.linear(f"{holder}.{router}", 4, 2.0)
        if mixtral:
            _rename(made.tensors, f"{holder}.gate.", f"{saved}.gate.")
        for number in range(model.config.num_experts_per_tok + 1):
            for name in names[: 2 + number % 2]:
                made.expert(holder, number, name, 6 if name == names[1] else 4, 2.0, saved=saved)
        made.expert(holder, model.config.num_experts_per_tok + 1, names[2], 4, 2.0, saved=saved)
        if hasattr(model.get_submodule(holder), "shared_expert_gate"):
            kinds.append("shared_expert_gate")
            made.linear(f"{holder}.shared_expert_gate", 4, 2.0)
        for shared in sorted({"shared_expert", "shared_experts"} & {*dir(model.get_submodule(holder))}):
            for name, rank in (("gate_proj", 4), ("up_proj", 6), ("down_proj", 4)):
                made.linear(f"{holder}.{shared}.{name}", rank, 2.0)
    attention = [name for name in _ATTENTION if getattr(model.model.layers[0].self_attn, name, None)]
    for holder in feed_forwards(model):
        for name in attention:
            made.linear(f"{holder.rpartition('.')[0]}.self_attn.{name}", 4, 2.0)
        if hasattr(model.get_submodule(holder), "down_proj"):
            made.linear(f"{holder}.down_proj", 4, 2.0)
    made.save(
        folder,
        r=4,
        lora_alpha=8,
        target_modules=sorted({*kinds, *attention}),
        rank_pattern={names[1]: 6},
        alpha_pattern={names[1]: 12},
    )
    return made


def _rename(tensors: Tensors, old: str, new: str) -> None:
    for name in [name for name in tensors if old in name]:
        tensors[name.replace(old, new)] = tensors.pop(name)


def write_older(model: Any, folder: Path) -> Written:
    """Write stacked pairs as PEFT before 0.19 did, with A on the outputs."""
    made = Written(model)
    for holder in sparse_layers(model):
        made.stack(holder, "gate_up_proj", ".base_layer", 4, 1.5, exchanged=not made.transposed)
        made.stack(holder, "down_proj", "", 3, 2.0, exchanged=not made.transposed)
    made.save(
        folder,
        r=4,
        lora_alpha=6,
        target_parameters=["experts.gate_up_proj", "experts.down_proj"],
        rank_pattern={"experts.down_proj": 3},
        peft_version="0.18.1",
    )
    return made


def write_newer(model: Any, folder: Path) -> Written:
    """Write stacked pairs of every layer as PEFT has done since 0.19, by the formulas."""
    made = Written(model)
    for holder in sparse_layers(model):
        made.stack(holder, "gate_up_proj", ".base_layer", 4, 1.5, exchanged=made.transposed)
        made.stack(holder, "down_proj", "", 4, 1.5, exchanged=made.transposed)
    parameters = ["experts.gate_up_proj", "experts.down_proj"]
    made.save(folder, r=4, lora_alpha=6, target_parameters=parameters)
    return made


def write_diagonal(model: Any, folder: Path) -> Written:
    """Write gate and up as PEFT saves a file of single experts: twice the rank, and half of B zeros."""
    made = Written(model)
    for holder in sparse_layers(model):
        experts, wide, inner = made.experts(holder, "gate_up_proj").shape
        a, b = made.pair(f"{holder}.experts", experts * 6, inner, wide)
        b.view(2, wide // 2, 2, 3, experts)[[0, 1], :, [1, 0]] = 0.0
        for expert in range(experts):
            product = b[:, expert::experts] @ a[expert * 6 : expert * 6 + 6]
            made.experts(holder, "gate_up_proj")[expert] += 2.0 * product
    made.save(folder, r=6, lora_alpha=12, target_parameters=["gate_up_proj"])
    return made


WRITERS: Final[Mapping[str, Callable[[Any, Path], Written]]] = {
    "single": write_single,
    "older": write_older,
    "newer": write_newer,
    "diagonal": write_diagonal,
}


def write_by_peft(model: Any, folder: Path, **options: Any) -> Any:
    """Have PEFT write a random adapter; return its model."""
    values: dict[str, Any] = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}
    torch.manual_seed(11)
    adapted = references.get_peft_model(deepcopy(model), references.LoraConfig(**(values | options)))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_" in name or ".modules_to_save." in name:
                value.normal_(0.0, 0.15)
    adapted.save_pretrained(str(folder))
    return adapted.eval()
