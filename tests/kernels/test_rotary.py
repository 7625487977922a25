"""The CPU path of rotation against the fp64 reference, its arguments, and the kernels' launch keys.

Twice the error of the plain sum of two products in the same dtype is allowed, and one rounding of the
largest value.
"""

from __future__ import annotations

import pytest
import torch

from kernels.rotary import gpu, reference, rotate_, rotate_and_store_
from tests.kernels.test_specialization import Recorder

SIZES = (1, 6, 42, 123, 431, 2049)
DTYPES = (torch.float32, torch.bfloat16)
HEADS = [(4, 1, 64, 64), (3, 3, 42, 42), (5, 1, 64, 16), (2, 1, 123, 86)]
"""(heads, kv heads, head_dim, dimensions turned)."""


def packed(rows: int, heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """[rows, heads, head_dim] inside wider rows, whose rest is NaN."""
    wide = torch.full((rows, heads * head_dim + 3), float("nan"), dtype=dtype)
    draw = torch.Generator().manual_seed(rows)
    wide[:, 1:-2] = torch.randn(rows, heads * head_dim, generator=draw).to(dtype)
    return wide[:, 1:-2].view(rows, heads, head_dim)


def angles(rows: int, turned: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    theta = torch.rand(rows, 1, turned // 2, generator=torch.Generator().manual_seed(turned)) * 7
    cos, sin = theta.cos(), theta.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def agrees(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.isfinite().all()
    floor = torch.finfo(ours.dtype).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max() + floor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "turned"), HEADS)
@pytest.mark.parametrize("rows", SIZES)
def test_equals_the_reference(
    rows: int, heads: int, kv_heads: int, head_dim: int, turned: int, dtype: torch.dtype
) -> None:
    qkv = packed(rows, heads + 2 * kv_heads, head_dim, dtype)
    before, turning = qkv.clone(), heads + kv_heads
    cos, sin = angles(rows, turned, dtype)
    exact = reference.rotate(before[:, :turning].double(), cos.double(), sin.double())
    rotate_(qkv[:, :turning], cos, sin)
    agrees(qkv[:, :turning], reference.rotate(before[:, :turning], cos, sin), exact)
    assert torch.equal(qkv[:, turning:], before[:, turning:])
    assert torch.equal(qkv[..., turned:], before[..., turned:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "turned"), HEADS)
def test_keys_and_values_go_to_their_slots(
    heads: int, kv_heads: int, head_dim: int, turned: int, dtype: torch.dtype
) -> None:
    qkv = packed(6, heads + 2 * kv_heads, head_dim, dtype)
    before = qkv.clone()
    cos, sin = angles(6, turned, dtype)
    slots = torch.tensor([13, -1, 0, 7, 30, 14])
    pages = torch.full((2, 4, 8, kv_heads, head_dim), float("nan"), dtype=dtype)
    expected = pages.clone()
    rotate_and_store_(qkv, cos, sin, pages[0], pages[1], slots)
    rotate_(before[:, : heads + kv_heads], cos, sin)
    reference.store(
        before[:, heads : heads + kv_heads], before[:, heads + kv_heads :], expected[0], expected[1], slots
    )
    assert torch.equal(qkv[:, :heads], before[:, :heads])
    assert torch.equal(pages.nan_to_num(-9), expected.nan_to_num(-9))


X, COS = torch.ones(2, 5, 8), torch.ones(2, 1, 8)
PAGES, SLOTS = torch.ones(3, 4, 1, 8), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, torch.ones(2, 8), COS), r"cos has shape \[2, 8\]; expected \[rows, 1, even"),
        ((X, torch.ones(2, 1, 10), COS), r"cos has shape \[2, 1, 10\]"),
        ((X, torch.ones(2, 1, 5), COS), r"cos has shape \[2, 1, 5\]"),
        ((X, COS, COS[:1]), r"sin has shape \[1, 1, 8\]; expected \[2, 1, 8\]"),
        ((X, COS, COS, PAGES[..., :7], PAGES, SLOTS), r"k_pages has shape \[3, 4, 1, 7\]"),
        ((X, COS, COS, PAGES.expand(3, 4, 3, 8), PAGES, SLOTS), r"k_pages has shape \[3, 4, 3, 8\]"),
        (
            (X, COS, COS, PAGES, PAGES[:2], SLOTS),
            r"v_pages has shape \[2, 4, 1, 8\]; expected \[3, 4, 1, 8\]",
        ),
        (
            (X, COS, COS, PAGES, PAGES, SLOTS.int()),
            r"slots has shape \[2\], torch.int32; expected int64 \[2\]",
        ),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[torch.Tensor, ...], message: str) -> None:
    op = rotate_ if len(arguments) == 3 else rotate_and_store_
    with pytest.raises(ValueError, match=message):
        op(*arguments)


def test_fifty_lengths_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("rotate_kernel", "rotate_and_store_kernel")
    recorders = {name: Recorder(getattr(gpu, name)) for name in names}
    for name, recorder in recorders.items():
        monkeypatch.setattr(gpu, name, recorder)
    pages = torch.zeros(2, 4, 16, 3, 64)
    for rows in range(1, 51):
        qkv, (cos, sin) = torch.zeros(rows, 15, 64), angles(rows, 64, torch.float32)
        gpu.rotate_(qkv[:, :12], cos, sin)
        gpu.rotate_and_store_(qkv, cos, sin, pages[0], pages[1], torch.zeros(rows, dtype=torch.int64))
    assert [len(recorders[name].keys) for name in names] == [1, 1]
