"""Rotary position embedding (Su et al., 2021), with frequencies scaled by `checkpoint.rope_config`."""

from __future__ import annotations

import math

import torch

from worker_engine.checkpoint.rope_config import LinearScaling, Llama3Scaling, Rope, YarnScaling

Angles = tuple[torch.Tensor, torch.Tensor]
"""cos and signed sin of a step's rows, as `kernels.rotary` takes them."""


class Rotary:
    """Tables of cos and sin for every position, in the model's dtype."""

    def __init__(
        self, rope: Rope, head_dim: int, max_positions: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        inv_freq, gain = frequencies(rope, head_dim)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), inv_freq)
        cos, sin = angles.cos() * gain, angles.sin() * gain
        self._cos = torch.cat((cos, cos), dim=-1).to(device, dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).to(device, dtype)

    def angles(self, positions: torch.Tensor) -> Angles:
        """Return cos and signed sin, each [rows, 1, head_dim]; computed once per step for all layers."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def in_halves(x: torch.Tensor) -> torch.Tensor:
    """Return [rows, heads, head_dim] with pairs (2i, 2i + 1) moved to (i, i + head_dim / 2).

    Queries and keys that are rotated in halves then give the scores of a rotation of neighbours.
    """
    return x.view(*x.shape[:2], -1, 2).transpose(2, 3).flatten(2)


def frequencies(rope: Rope, head_dim: int) -> tuple[torch.Tensor, float]:
    """Return frequencies, float32 [head_dim / 2] in radians per position, and a factor for cos and sin."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inv_freq = 1.0 / (rope.theta**exponent)
    scaling = rope.scaling
    if isinstance(scaling, LinearScaling):
        return inv_freq / scaling.factor, 1.0
    if isinstance(scaling, Llama3Scaling):
        return _llama3(inv_freq, scaling), 1.0
    if isinstance(scaling, YarnScaling):
        gain = scaling.attention_factor or 0.1 * math.log(max(scaling.factor, 1.0)) + 1.0
        return _yarn(inv_freq, rope.theta, scaling), gain
    return inv_freq, 1.0


def _llama3(inv_freq: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Stretch long wavelengths by `factor`, keep short ones, and interpolate between them."""
    wavelength = 2 * math.pi / inv_freq
    context = scaling.original_max_position_embeddings
    smooth = (context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq
    scaled = torch.where(wavelength > context / scaling.low_freq_factor, inv_freq / scaling.factor, blended)
    return torch.where(wavelength < context / scaling.high_freq_factor, inv_freq, scaled)


def _yarn(inv_freq: torch.Tensor, theta: float, scaling: YarnScaling) -> torch.Tensor:
    """Scale frequencies as YaRN does.

    Pairs that turn at least `beta_fast` times within the original context are kept; those that turn fewer
    than `beta_slow` times are stretched. Pairs in between are blended linearly by their index.
    """
    size = 2 * len(inv_freq)

    def pair(turns: float) -> float:
        context = scaling.original_max_position_embeddings
        return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001
    stretched = ((torch.arange(len(inv_freq), dtype=torch.float32) - low) / width).clamp(0, 1)
    return inv_freq / scaling.factor * stretched + inv_freq * (1 - stretched)
