"""How a checkpoint turns its queries and keys by position: the base frequency, and what stretches it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from worker_engine.checkpoint.config_fields import Fields


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al., 2023, arXiv:2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths stretched by `factor`, short ones kept, those between interpolated (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """By dimension instead of wavelength, and hotter attention (Peng et al., 2023, arXiv:2309.00071).

    Attributes:
        attention_factor: what cosines and sines are multiplied with; 0 for 0.1 ln(factor) + 1.
        truncate: whether the band's edges are whole dimensions.
        mscale_all_dim: by which DeepSeek scales scores; 0 for none.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool
    mscale_all_dim: float = 0.0

    @property
    def score_gain(self) -> float:
        """Factor of DeepSeek's attention scores."""
        return _magnitude(self.factor, self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0


def _magnitude(factor: float, mscale: float) -> float:
    """YaRN's correction of attention for contexts `factor` times as long."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """One table of angles: dimension pair i of d turns by position / theta^(2i/d), then as `scaling` says."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None

    @property
    def stretched_positions(self) -> int:
        """Positions that YaRN makes of the original ones; its configs often state only the latter."""
        if not isinstance(self.scaling, YarnScaling):
            return 0
        return int(self.scaling.factor * self.scaling.original_max_position_embeddings)


_BASIC: Final = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def read_rope(fields: Fields, *, theta: float = 10000.0, mscale: bool = False) -> Rope:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` as checkpoints before 2026 say it.

    Args:
        mscale: True if the family has `mscale` and `mscale_all_dim` among YaRN's fields.

    Raises:
        CheckpointError: a kind of scaling, or a field of it, that is not served.
    """
    fields.must_be("partial_rotary_factor", 1.0)
    theta = fields.number("rope_theta", theta)
    found = fields.section("rope_scaling") or fields.section("rope_parameters")
    if found is None:
        return Rope(theta)
    return read_rope_section(found, theta, fields.whole("max_position_embeddings"), mscale=mscale)


def read_rope_section(found: Fields, theta: float, positions: int, *, mscale: bool = False) -> Rope:
    """One object of rope parameters; `theta` and `positions` are what it may leave out. See `read_rope`."""
    found.must_be("partial_rotary_factor", 1.0)
    theta = found.number("rope_theta", theta)
    name = "rope_type" if "rope_type" in found else "type"
    kind = found.text(name, "default")
    original = "original_max_position_embeddings"
    if kind == "default":
        found.only(*_BASIC)
        return Rope(theta)
    if kind == "linear":
        found.only(*_BASIC, "factor")
        return Rope(theta, LinearScaling(found.number("factor")))
    if kind == "llama3":
        found.only(*_BASIC, "factor", "low_freq_factor", "high_freq_factor", original)
        low, high = found.number("low_freq_factor"), found.number("high_freq_factor")
        if low >= high:
            raise found.error("low_freq_factor", f"must be less than high_freq_factor {high}, got {low}")
        return Rope(theta, Llama3Scaling(found.number("factor"), low, high, found.whole(original, positions)))
    if kind == "yarn":
        return Rope(theta, _yarn(found, positions, mscale=mscale))
    raise found.error(name, f"{kind!r} is not served, only 'default', 'linear', 'llama3' and 'yarn'")


def _yarn(found: Fields, positions: int, *, mscale: bool) -> YarnScaling:
    original = "original_max_position_embeddings"
    factor, every = found.number("factor"), "mscale_all_dim"
    names = ("factor", original, "beta_fast", "beta_slow", "attention_factor", "truncate")
    found.only(*_BASIC, *names, *(("mscale", every) if mscale else ()))
    gain = found.number("attention_factor") if "attention_factor" in found else 0.0
    if not gain and "mscale" in found and every in found:
        gain = _magnitude(factor, found.number("mscale")) / _magnitude(factor, found.number(every))
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=found.whole(original, positions),
        beta_fast=found.number("beta_fast", 32.0),
        beta_slow=found.number("beta_slow", 1.0),
        attention_factor=gain,
        truncate=found.flag("truncate", True),
        mscale_all_dim=found.number(every) if every in found else 0.0,
    )
