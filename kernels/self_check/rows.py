"""Checks of the ops that take rows one by one: normalisation, rotation, activation."""

from __future__ import annotations

import torch

from kernels.self_check.shapes import ModelShapes, demand

ROWS = (1, 6)
EPS = 1e-5


def norm(shapes: ModelShapes, device: torch.device) -> None:
    """Rows of the hidden size, and heads in place."""
    from kernels.norm import gpu, reference

    dtype = shapes.torch_dtype
    for rows in ROWS:
        x, weight = _drawn(rows, shapes.hidden, dtype=dtype), _drawn(shapes.hidden, dtype=dtype)
        out = gpu.rms_norm(x.to(device), weight.to(device), EPS, out=_poison(x, device))
        exact = reference.rms_norm(x.double(), weight.double(), EPS)
        demand("rms_norm", out, reference.rms_norm(x, weight, EPS), exact, float(exact.abs().max()))
        heads = shapes.heads + shapes.kv_heads
        x = _drawn(rows, heads, shapes.head_dim, dtype=dtype)
        weight = _drawn(heads, shapes.head_dim, dtype=dtype)
        turned = x.to(device, copy=True)
        gpu.head_rms_norm_(turned, weight.to(device), EPS)
        exact = reference.rms_norm(x.double(), weight.double(), EPS)
        demand("head_rms_norm_", turned, reference.rms_norm(x, weight, EPS), exact, float(exact.abs().max()))


def rotary(shapes: ModelShapes, device: torch.device) -> None:
    """Query and key heads of packed rows, in place."""
    from kernels.rotary import gpu, reference

    dtype, turning = shapes.torch_dtype, shapes.heads + shapes.kv_heads
    for rows in ROWS:
        theta = _drawn(rows, 1, shapes.head_dim // 2, dtype=torch.float32) * 3
        cos = torch.cat((theta.cos(), theta.cos()), -1).to(dtype)
        sin = torch.cat((-theta.sin(), theta.sin()), -1).to(dtype)
        qkv = _drawn(rows, turning + shapes.kv_heads, shapes.head_dim, dtype=dtype)
        ours = qkv.to(device, copy=True)
        gpu.rotate_(ours[:, :turning], cos.to(device), sin.to(device))
        exact, theirs = qkv.double(), qkv.clone()
        exact[:, :turning] = reference.rotate(exact[:, :turning], cos.double(), sin.double())
        theirs[:, :turning] = reference.rotate(qkv[:, :turning], cos, sin)
        demand("rotate_", ours, theirs, exact, float(exact.abs().max()))


def activation(shapes: ModelShapes, device: torch.device) -> None:
    """The feed-forward's gate, of the width of its second linear layer's input."""
    from kernels.activation import gpu, reference

    dtype, width = shapes.torch_dtype, shapes.intermediate
    for rows in ROWS:
        x = _drawn(rows, 2 * width, dtype=dtype) * 3
        poison = _poison(x[:, :width], device)
        out = gpu.gated(x.to(device), shapes.activation, out=poison)
        exact = reference.gated(x.double(), shapes.activation)
        theirs = reference.gated(x, shapes.activation)
        demand("gated", out, theirs, exact, float(exact.abs().max()))


def _drawn(*size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*size).to(dtype)


def _poison(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.full(like.shape, float("nan"), dtype=like.dtype, device=device)
