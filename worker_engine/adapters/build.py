"""Converts an adapter's configuration and tensors to the weights that are served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.adapters.tensors import EMBEDDING, HEAD, Modules, Part, tokens_of
from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter, OwnRows
from worker_engine.adapters.base_weights import BaseWeights
from worker_engine.adapters.layer_modules import LayerModule, layer_module
from worker_engine.adapters.stacked_experts import is_exchanged, split_halves, stacked_pair
from worker_engine.checkpoint.experts_config import expert_key
from worker_engine.checkpoint.interleaved import gate_then_up
from worker_engine.errors import AdapterRefused

_EXPONENTS: Final = {torch.float32: 0x7F80_0000, torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""An exponent of all ones means NaN or infinity."""


@dataclass(slots=True)
class AdapterBuilder:
    """Collects one adapter's weights in host memory, module by module, as sorted by `sort_tensors`.

    Everything is computed in float32 and rounded once. Weights that then overflow are refused, since an
    infinite B times another adapter's zeroed column would be NaN.
    """

    config: LoraConfig
    modules: Modules
    tensors: Mapping[str, torch.Tensor]
    base: BaseWeights
    dtype: torch.dtype
    layers: list[dict[str, LoraPair]] = field(init=False)
    tops: dict[str, LoraPair] = field(default_factory=dict)
    gains: dict[str, torch.Tensor] = field(default_factory=dict)
    biases: dict[str, torch.Tensor] = field(default_factory=dict)
    norms: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: dict[str, OwnRows] = field(default_factory=dict)
    _made: list[tuple[str, torch.Tensor]] = field(default_factory=list)

    def build(self, sha256: str) -> Adapter:
        """Return the adapter. Raises AdapterRefused or AdapterConfigError naming the tensor or field at
        fault.
        """
        _demand_values(self.tensors)
        self.layers = [{} for _ in range(self.base.config.num_layers)]
        for path, parts in self.modules.items():
            self._take(path, {part: self.tensors[name] for part, name in parts.items()}, parts)
        self._demand_no_overflow()
        pairs = [pair for by_module in (*self.layers, self.tops) for pair in by_module.values()]
        others = (self.gains, self.biases, self.norms)
        nbytes = sum(pair.nbytes for pair in pairs) + sum(rows.nbytes for rows in self.rows.values())
        nbytes += sum(tensor.nbytes for tensors in others for tensor in tensors.values())
        return Adapter(
            sha256,
            tuple(self.layers),
            nbytes,
            self.tops,
            self.gains,
            self.biases,
            self.norms,
            self.rows,
            embeds_only=self.config.embeds_only,
        )

    def _take(self, path: str, parts: Mapping[Part, torch.Tensor], names: Mapping[Part, str]) -> None:
        if Part.BASE_WEIGHT in parts:
            self._demand_same(path, names[Part.BASE_WEIGHT], parts[Part.BASE_WEIGHT])
        target = layer_module(path)
        if target is not None and target.stacked:
            self._take_experts(path, target, parts[Part.A], parts[Part.B])
            return
        if Part.A in parts:
            self._take_pair(path, parts[Part.A], parts[Part.B].T, parts)
        if Part.EMBEDDING_A in parts:
            self._take_pair(path, parts[Part.EMBEDDING_A], parts[Part.EMBEDDING_B].T, parts)
        if Part.BIAS in parts:
            bias = parts[Part.BIAS].float() - self.base.get(f"{path}.bias").float()
            self.biases[path if target is None else target.path] = bias
        if Part.WEIGHT in parts:
            weight = self._rounded(path, parts[Part.WEIGHT])
            if path in (EMBEDDING, HEAD):
                self.rows[path] = OwnRows(weight)
                if path == EMBEDDING and self.base.tied and self.config.ties_head:
                    self.rows[HEAD] = self.rows[path]
            else:
                self.norms[path] = weight
        if Part.TOKENS in parts:
            tokens = torch.tensor(tokens_of(self.config, path), dtype=torch.int64)
            self.rows[path] = OwnRows(self._rounded(path, parts[Part.TOKENS]), tokens)
            if path == EMBEDDING and self.base.tied and not tokens_of(self.config, HEAD):
                self.rows[HEAD] = self.rows[path]  # PEFT ties what it trained as the base is tied

    def _take_pair(
        self, path: str, a: torch.Tensor, b: torch.Tensor, parts: Mapping[Part, torch.Tensor]
    ) -> None:
        """Take a LoRA pair: a [rank, in], b [rank, out]."""
        scaling, target = self.config.scaling_of(path), layer_module(path)
        if self._alternates(target):
            b = gate_then_up(b, 1)
        pair = LoraPair(self._rounded(path, a), self._rounded(path, b.float() * scaling))
        if target is not None:
            self._demand_fits(path, target, pair)
            self._put(path, target.layer, target.key, pair)
        elif path in (EMBEDDING, HEAD):
            self.tops[path] = pair
        else:
            raise AdapterRefused(f"LoRA on {path} has no place in the model that this worker serves")
        named = path if target is None else target.path
        if Part.MAGNITUDE in parts:
            gain = parts[Part.MAGNITUDE].float() / self._merged_norm(path, a.float(), b.float() * scaling)
            if not bool(torch.isfinite(gain).all()):
                raise AdapterRefused(
                    f"lora_magnitude_vector of {path}: an output of the merged weight is zero"
                )
            self.gains[named] = gain
        if Part.LORA_BIAS in parts:
            self.biases[named] = parts[Part.LORA_BIAS].float() * scaling

    def _demand_fits(self, path: str, target: LayerModule, pair: LoraPair) -> None:
        """Refuse a single expert's pair for a matrix (in, out), which stacked checkpoints do not rule out."""
        experts = self.base.config.experts
        if not target.single or experts is None:
            return
        shape = experts.expert_shapes(self.base.config.hidden_size)[target.key.rpartition(".")[2]]
        if (pair.b.shape[1], pair.a.shape[1]) != shape:
            raise AdapterConfigError(
                f"LoRA on {path} is of a matrix ({pair.b.shape[1]}, {pair.a.shape[1]}), expected {shape}"
            )

    def _take_experts(self, path: str, target: LayerModule, a: torch.Tensor, b: torch.Tensor) -> None:
        """Take the pair of all experts of a layer, as PEFT's `target_parameters` writes it."""
        experts, out, inner = self.base.shapes_of_experts(path)
        family = self.base.config.experts
        exchanged = family is not None and is_exchanged(
            a, b, (out, inner), self.config.raw, a_on_inputs=family.a_on_inputs, transposed=family.transposed
        )
        a, b = stacked_pair(a, b, experts, exchanged=exchanged)
        if self._alternates(target):
            b = gate_then_up(b, 2)
        halves = split_halves(a, b) if target.key == "gate_up_proj" else None
        if halves is None:
            self._take_stack(path, target.layer, target.key, a, b)
        else:
            for key, half in zip(("gate_proj", "up_proj"), halves, strict=True):
                self._take_stack(path, target.layer, key, *half)

    def _alternates(self, target: LayerModule | None) -> bool:
        """Return True for gate_up_proj where the family's rows of gate and up alternate."""
        experts = self.base.config.experts
        if target is None or experts is None or not experts.interleaved:
            return False
        return target.key.rpartition(".")[2] == "gate_up_proj"

    def _take_stack(self, path: str, layer: int, key: str, a: torch.Tensor, b: torch.Tensor) -> None:
        a = self._rounded(path, a)
        b = self._rounded(path, b.float() * self.config.scaling_of(path))
        for expert, pair in enumerate(zip(a, b, strict=True)):
            self._put(path, layer, expert_key(expert, key), LoraPair(*pair))

    def _put(self, path: str, layer: int, key: str, pair: LoraPair) -> None:
        if key in self.layers[layer]:
            raise AdapterConfigError(f"LoRA on {path}: layer {layer} has a pair on {key} already")
        self.layers[layer][key] = pair

    def _merged_norm(self, path: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return ||W + s B A|| of every output: [out], in float32 (Liu et al., 2024, arXiv:2402.09353)."""
        weight = self.base.multiplied(f"{path}.weight").float()
        # Of an embedding, whose A is over the vocabulary, the outputs are W's columns.
        weight = weight.T if path == EMBEDDING else weight
        norm: torch.Tensor = torch.addmm(weight, b.T, a).norm(dim=1)
        return norm

    def _rounded(self, path: str, tensor: torch.Tensor) -> torch.Tensor:
        rounded = tensor.to(self.dtype).contiguous()
        self._made.append((path, rounded))
        return rounded

    def _demand_no_overflow(self) -> None:
        index = _first_not_finite([tensor for _, tensor in self._made])
        if index is not None:
            raise AdapterRefused(f"weights of {self._made[index][0]} overflow {self.dtype} once scaled")

    def _demand_same(self, path: str, name: str, tensor: torch.Tensor) -> None:
        """Raise AdapterRefused if the embedding that PEFT saved with LoRA on it is not the base's."""
        if not torch.equal(tensor.to(self.dtype), self.base.get(f"{path}.weight")):
            raise AdapterRefused(
                f"tensor {name} is not the base model's: the adapter was trained on other embeddings"
            )


def _demand_values(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in _EXPONENTS:
            raise AdapterRefused(f"tensor {name} is {tensor.dtype}, expected bf16, fp16 or fp32")
    if (index := _first_not_finite(list(tensors.values()))) is not None:
        raise AdapterRefused(f"tensor {list(tensors)[index]} holds NaN or infinite values")


def _first_not_finite(tensors: Sequence[torch.Tensor]) -> int | None:
    """Return the index of the first tensor that is not finite, or None.

    All are checked at once if possible: 240 single checks take half of a load's time.
    """
    alike = len({tensor.dtype for tensor in tensors}) == 1
    if alike and is_finite(torch.cat([tensor.reshape(-1) for tensor in tensors])):
        return None
    return next((index for index, tensor in enumerate(tensors) if not is_finite(tensor)), None)


def is_finite(tensor: torch.Tensor) -> bool:
    """Return True if a bf16, fp16 or fp32 tensor has no NaN and no infinity.

    The bits are checked in this thread only, because PyTorch's operations would use the engine's cores.
    """
    exponent = _EXPONENTS[tensor.dtype]
    bits = tensor.contiguous().view(torch.int32 if tensor.dtype.itemsize == 4 else torch.int16).numpy()
    return not bool(((bits & exponent) == exponent).any())
