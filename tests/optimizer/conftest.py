"""Tests of `python -m optimizer` on tiny checkpoints."""

from __future__ import annotations

import torch

# One thread: tiny products gain nothing from two, and two that spin on a busy machine lose tenfold.
torch.set_num_threads(1)
