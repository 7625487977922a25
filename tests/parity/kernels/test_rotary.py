"""The CPU path against the rotation of transformers."""

from __future__ import annotations

import torch

from kernels.rotary import rotate_
from tests.kernels.test_rotary import angles, packed
from tests.parity import references


def test_is_the_rotation_of_transformers() -> None:
    q, k = packed(42, 6, 64, torch.float32), packed(42, 2, 64, torch.float32)
    cos, sin = angles(42, 64, torch.float32)
    heads_first = [x.transpose(0, 1).unsqueeze(0) for x in (q, k)]
    half = sin[..., 32:]
    expected = references.apply_rotary_pos_emb(
        *heads_first, cos.transpose(0, 1), torch.cat((half, half), -1).transpose(0, 1)
    )
    for x, theirs in zip((q, k), expected, strict=True):
        rotate_(x, cos, sin)
        torch.testing.assert_close(x, theirs[0].transpose(0, 1), rtol=1e-6, atol=1e-6)
