"""Rotary kernels against the specification in float64; what surrounds the heads and slots is NaN.

Twice torch's error in the same dtype is allowed, and one rounding of the largest value.
"""

from __future__ import annotations

import pytest
import torch

from kernels.rotary import gpu, reference

DTYPES = (torch.float32, torch.float16)
HEADS = [(4, 1, 64, 64), (3, 3, 42, 42), (5, 1, 64, 16), (2, 1, 123, 86), (70, 8, 16, 16), (1, 1, 6, 2)]
"""(heads, kv heads, head_dim, dimensions turned)."""


def packed(rows: int, heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.full((rows, heads * head_dim + 3), float("nan"), dtype=dtype)
    wide[:, 1:-2] = torch.randn(rows, heads * head_dim).to(dtype)
    return wide[:, 1:-2].view(rows, heads, head_dim)


def angles(rows: int, turned: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    theta = torch.rand(rows, 1, turned // 2) * 7
    cos, sin = theta.cos(), theta.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def agrees(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.isfinite().all()
    floor = torch.finfo(ours.dtype).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "turned"), HEADS)
@pytest.mark.parametrize("rows", [1, 6, 42])
def test_rotates_in_place(
    rows: int, heads: int, kv_heads: int, head_dim: int, turned: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    qkv = packed(rows, heads + 2 * kv_heads, head_dim, dtype)
    before, turning = qkv.clone(), heads + kv_heads
    cos, sin = angles(rows, turned, dtype)
    gpu.rotate_(qkv[:, :turning], cos, sin)
    exact = reference.rotate(before[:, :turning].double(), cos.double(), sin.double())
    agrees(qkv[:, :turning], reference.rotate(before[:, :turning], cos, sin), exact)
    assert torch.equal(qkv[:, turning:], before[:, turning:])
    assert torch.equal(qkv[..., turned:], before[..., turned:])


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "turned"), HEADS)
def test_stores_keys_and_values(
    heads: int, kv_heads: int, head_dim: int, turned: int, dtype: torch.dtype, heads_first: bool
) -> None:
    torch.manual_seed(heads)
    qkv = packed(6, heads + 2 * kv_heads, head_dim, dtype)
    before, turning = qkv.clone(), heads + kv_heads
    cos, sin = angles(6, turned, dtype)
    slots = torch.tensor([13, -1, 0, 7, 30, 14])
    guarded = torch.full((2, 5, 8, kv_heads, head_dim), float("nan"), dtype=dtype)
    if heads_first:  # pages of another layout, seen through strides
        guarded = guarded.permute(3, 0, 1, 2, 4).contiguous().permute(1, 2, 3, 0, 4)
    pages = guarded[:, 1:]
    gpu.rotate_and_store_(qkv, cos, sin, pages[0], pages[1], slots)
    exact = reference.rotate(before[:, :turning].double(), cos.double(), sin.double())
    theirs = reference.rotate(before[:, :turning], cos, sin)
    agrees(qkv[:, :heads], theirs[:, :heads], exact[:, :heads])
    kept = slots >= 0
    k, v = (side.reshape(32, kv_heads, head_dim) for side in pages)
    agrees(k[slots[kept]], theirs[kept, heads:], exact[kept, heads:])
    assert torch.equal(v[slots[kept]], before[kept, turning:])
    others = torch.ones(32, dtype=torch.bool).index_fill_(0, slots[kept], False)
    assert k[others].isnan().all()
    assert v[others].isnan().all()
    assert guarded[:, 0].isnan().all()


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy, which multiplies in the interpreter
def test_an_infinite_value_is_stored_beside_its_partner() -> None:
    """It is copied: turned by an angle of 0, its partner would become NaN."""
    qkv = packed(2, 4, 8, torch.float32)
    qkv[0, 3, 1], qkv[1, 3, 6], qkv[1, 3, 0] = float("inf"), float("-inf"), -0.0
    values = qkv[:, 3:].clone()
    pages = torch.zeros(2, 1, 4, 1, 8)
    gpu.rotate_and_store_(qkv, *angles(2, 8, torch.float32), pages[0], pages[1], torch.tensor([2, 0]))
    assert torch.equal(pages[1, 0, [2, 0]].view(torch.int32), values.view(torch.int32))


def test_no_rows() -> None:
    empty = torch.ones(0, 4, 8)
    gpu.rotate_(empty, torch.ones(0, 1, 8), torch.ones(0, 1, 8))
    pages = torch.ones(1, 4, 1, 8)
    slots = torch.zeros(0, dtype=torch.int64)
    values = pages.clone()
    gpu.rotate_and_store_(empty, torch.ones(0, 1, 8), torch.ones(0, 1, 8), pages, values, slots)
    assert torch.all(pages == 1)
    assert torch.all(values == 1)


QKV, COS = torch.ones(2, 4, 8), torch.ones(2, 1, 8)
PAGES, SLOTS = torch.ones(3, 4, 1, 8), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((QKV, COS.half(), COS, PAGES, PAGES, SLOTS), r"cos of shape \[2, 1, 8\] is torch.float16"),
        ((QKV, COS, COS, PAGES.transpose(2, 3), PAGES, SLOTS), r"k_pages of shape .* the last dimension"),
        ((QKV.repeat(1, 2, 1)[:, ::2], COS, COS, PAGES, PAGES, SLOTS), r"qkv of shape .* strides \(64, 16"),
        ((QKV, COS, COS, PAGES, PAGES.expand(3, 4, 2, 8)[:, :, :1], SLOTS), r"v_pages of shape .* own"),
        ((QKV, COS, COS, PAGES, PAGES, SLOTS.repeat(2)[::2]), r"slots of shape \[2\] must be contiguous"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[torch.Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpu.rotate_and_store_(*arguments)
