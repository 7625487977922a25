"""Phases of a scale-up. This module does not import Django; benchmarks use it."""

from __future__ import annotations

from typing import Final

PHASES: Final = ("detect", "provision", "image", "weights", "runtime", "traffic")
"""In time order: detecting the demand; a machine or process for it; the program on it; the model's weights in
memory; the first step and the server; the first request."""
