"""Rotary position embedding (Su et al., 2021), with Llama 3's frequency scaling."""

from __future__ import annotations

import math

import torch

from kernels.rotary import rotate_
from worker_engine.config import ModelConfig, RopeScaling


class Rotary:
    """Tables of cos and sin for every position, in the model's dtype."""

    def __init__(
        self, config: ModelConfig, max_positions: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        inv_freq = 1.0 / (config.rope_theta**exponent)
        if config.rope_scaling is not None:
            inv_freq = _scale(inv_freq, config.rope_scaling)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), inv_freq)
        self._cos = torch.cat((angles.cos(), angles.cos()), dim=-1).to(device, dtype)
        self._sin = torch.cat((-angles.sin(), angles.sin()), dim=-1).to(device, dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin, each [rows, 1, head_dim], once per step for all layers."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def rotate_(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Turns [rows, heads, head_dim] in place."""
        rotate_(x, *angles)


def _scale(inv_freq: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, the band between interpolated."""
    wavelength = 2 * math.pi / inv_freq
    context = scaling.original_max_position_embeddings
    smooth = (context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq
    scaled = torch.where(wavelength > context / scaling.low_freq_factor, inv_freq / scaling.factor, blended)
    return torch.where(wavelength < context / scaling.high_freq_factor, inv_freq, scaled)
