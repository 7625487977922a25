"""Norms, rotary embedding and gated activations: their inputs, calls and specifications."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.gpu.attention_inputs import PAGE_SIZE
from benchmarks.gpu.lora_inputs import Work
from benchmarks.gpu.shapes import Model
from benchmarks.gpu.verdict import op_module
from kernels.activation import reference as activation
from kernels.norm import reference as norm
from kernels.rotary import reference as rotary

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class RowCall:
    """One call of an op on its own inputs.

    Attributes:
        run: the implementation of the device; gives every tensor that it made or changed.
        specified: the same, by the specification in a dtype, from the inputs as they were.
        work: least bytes; the operations are a few a value, and no product of matrices.
    """

    run: Callable[[], list[torch.Tensor]]
    specified: Callable[[torch.dtype], list[torch.Tensor]]
    work: Work


def add_rms_norm(model: Model, rows: int, dtype: torch.dtype, device: torch.device) -> RowCall:
    """The norm between two halves of a decoder layer: residual sum, then normalisation."""
    x, residual = torch.randn(2, rows, model.hidden, dtype=dtype, device=device)
    weight = torch.rand(model.hidden, dtype=dtype, device=device) + 0.5
    before = residual.clone()

    def run() -> list[torch.Tensor]:
        return [residual, op_module("norm", device).rms_norm(x, weight, EPS, residual=residual)]

    def specified(wide: torch.dtype) -> list[torch.Tensor]:
        # The sum is rounded before it is normalised: that is what the op means, in any precision.
        total = (x + before).to(wide)
        return [total, norm.rms_norm(total, weight.to(wide), EPS)]

    size = rows * model.hidden
    return RowCall(run, specified, Work((4 * size + model.hidden) * dtype.itemsize, 5 * size))


def head_rms_norm(model: Model, rows: int, dtype: torch.dtype, device: torch.device) -> RowCall:
    """Qwen3's norm of every query and key head, in place inside a packed qkv."""
    heads, dim = model.heads + model.kv_heads, model.head_dim
    qkv = torch.randn(rows, heads + model.kv_heads, dim, dtype=dtype, device=device)
    weight = torch.rand(heads, dim, dtype=dtype, device=device) + 0.5
    before = qkv.clone()

    def run() -> list[torch.Tensor]:
        # On CPU the public op hands `out=x` to the path for rows.
        module = op_module("norm", device)
        if hasattr(module, "head_rms_norm_"):
            module.head_rms_norm_(qkv[:, :heads], weight, EPS)
        else:
            module.rms_norm(qkv[:, :heads], weight, EPS, out=qkv[:, :heads])
        return [qkv]

    def specified(wide: torch.dtype) -> list[torch.Tensor]:
        result = before.to(wide)
        result[:, :heads] = norm.rms_norm(result[:, :heads], weight.to(wide), EPS)
        return [result]

    size = rows * heads * dim
    return RowCall(run, specified, Work((2 * size + heads * dim) * dtype.itemsize, 5 * size))


def rotate_and_store(model: Model, rows: int, dtype: torch.dtype, device: torch.device) -> RowCall:
    """Rotates queries in place and writes rotated keys and values to their slots."""
    heads, kv_heads, dim = model.heads, model.kv_heads, model.head_dim
    qkv = torch.randn(rows, heads + 2 * kv_heads, dim, dtype=dtype, device=device)
    angles = torch.rand(rows, 1, dim // 2, device=device) * 6.0
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    count = -(-rows // PAGE_SIZE) + 2
    pages = torch.zeros(2, count, PAGE_SIZE, kv_heads, dim, dtype=dtype, device=device)
    slots = torch.randperm(count * PAGE_SIZE)[:rows].to(device)
    before = qkv.clone()

    def run() -> list[torch.Tensor]:
        op_module("rotary", device).rotate_and_store_(qkv, cos, sin, pages[0], pages[1], slots)
        return [qkv[:, :heads], pages]

    def specified(wide: torch.dtype) -> list[torch.Tensor]:
        turned = rotary.rotate(before[:, : heads + kv_heads].to(wide), cos.to(wide), sin.to(wide))
        held = torch.zeros(pages.shape, dtype=wide, device=device)
        values = before[:, heads + kv_heads :].to(wide)
        rotary.store(turned[:, heads:], values, held[0], held[1], slots)
        return [turned[:, :heads], held]

    size = rows * (heads + 2 * kv_heads) * dim
    return RowCall(run, specified, Work((2 * size + 2 * rows * dim) * dtype.itemsize, 3 * size))


def gated(model: Model, rows: int, dtype: torch.dtype, device: torch.device, kind: str = "silu") -> RowCall:
    """The feed-forward's activation from a packed gate and up."""
    gate_up = torch.randn(rows, 2 * model.intermediate, dtype=dtype, device=device)

    def run() -> list[torch.Tensor]:
        return [
            op_module("activation", device).gated(
                gate_up, kind, interleaved=False, alpha=1.702, limit=7.0, out=None
            )
        ]

    def specified(wide: torch.dtype) -> list[torch.Tensor]:
        return [activation.gated(gate_up.to(wide), kind)]

    size = rows * model.intermediate
    return RowCall(run, specified, Work(3 * size * dtype.itemsize, 5 * size))


OPS: dict[str, Callable[[Model, int, torch.dtype, torch.device], RowCall]] = {
    "add_rms_norm": add_rms_norm,
    "head_rms_norm": head_rms_norm,
    "rotate_and_store": rotate_and_store,
    "gated": gated,
}
