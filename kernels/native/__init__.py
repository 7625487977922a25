"""Native loops for decode steps in bf16 on CPUs with AVX-512 or AVX2, where PyTorch's operations are slow.

They are compiled by the machine's C++ compiler on first use (some seconds) and cached. Without a compiler, or
on another CPU, `LIBRARY` is None and callers use PyTorch's operations. Callers check the arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import torch

from kernels.native.build import instruction_set, load

__all__ = [
    "LIBRARY",
    "declare",
    "dense_rows",
    "linear",
    "pack",
    "rms_norm",
    "rotate_",
    "silu_gated",
    "unpack",
]

LANES: Final = 16
_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS: Final[dict[str, Sequence[type]]] = {
    "graft_linear": (_P, _I, _P, _P, _P, _P, _I, _I, _I, _I),
    "graft_matrix": (_P, _I, _P, _P, _P, _P, _I, _I, _I, _I),
    "graft_rms_norm": (_P, _I, _P, _P, _I, _I, _I, _I, _F, _I),
    "graft_rotate": (_P, _I, _P, _P, _I, _I, _I, _I, _I),
    "graft_silu_gated": (_P, _P, _I, _I, _I),
    "graft_attend": (_P, _P, _I, _P, _P, _P),
    "graft_rotate_store_attend": (_P, _P, _P, _P),
    "graft_layers": (_P, _I, _P, _P, _P, _P, _P, _P, _I, _I, _F),
    "graft_route": (_P, _P, _P, _I, _I, _I, ctypes.c_bool, _I),
    "graft_experts": (_P, _P, _P, _P, _I, _P, _P, _P, _P, _I, _I),
    "graft_expert_bytes": (_P, _P),
    "graft_lora": (_P, _P, _P, _I, _P, _I, _I, _I),
    "graft_lora_fp32": (_P, _P, _P, _I, _P, _I, _I, _I),
}


def declare(library: ctypes.CDLL | None) -> ctypes.CDLL | None:
    """Declare the C functions' argument types to ctypes."""
    if library is not None:
        library.graft_widen.argtypes, library.graft_widen.restype = (ctypes.c_bool,), ctypes.c_bool
        for name, types in _ARGUMENTS.items():
            getattr(library, name).argtypes = types
            getattr(library, name).restype = None
    return library


LIBRARY: Final = declare(load(instruction_set()))


def dense_rows(x: torch.Tensor) -> bool:
    """Return True if every row of x [rows, width] or [rows, heads, head_dim] is contiguous."""
    stride = x.stride()
    return stride[-1] == 1 and (len(stride) == 2 or stride[1] == x.shape[2])


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Pack bf16 [out, in], in even, to [blocks of 16 out, in / 2, 16, 2]; the last block is zero-padded."""
    out, inner = weight.shape
    blocks = -(-out // LANES)
    if blocks * LANES != out:
        weight = torch.cat((weight, weight.new_zeros(blocks * LANES - out, inner)))
    return weight.view(blocks, LANES, inner // 2, 2).transpose(1, 2).contiguous()


def unpack(packed: torch.Tensor, out: int) -> torch.Tensor:
    """Return the bf16 [out, in] weights that `pack` packed."""
    return packed.transpose(1, 2).reshape(-1, 2 * packed.shape[1])[:out].contiguous()


def linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    columns: int,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """Map x [rows, in], last dimension contiguous, to [rows, columns], plus bias and residual, rounded once.

    Raises:
        ValueError: x or residual that would be read out of bounds.
    """
    rows, inner = x.shape
    if inner != 2 * packed.shape[1] or x.stride(1) != 1 or x.dtype != torch.bfloat16:
        raise ValueError(
            f"x has shape {list(x.shape)}, {x.dtype}; expected bfloat16 [rows, {2 * packed.shape[1]}], "
            "the last dimension contiguous"
        )
    if residual is not None and (residual.shape != (rows, columns) or not residual.is_contiguous()):
        raise ValueError(
            f"residual has shape {list(residual.shape)}; expected [{rows}, {columns}], contiguous"
        )
    out = torch.empty((rows, columns), dtype=x.dtype)
    LIBRARY.graft_linear(  # type: ignore[union-attr]
        x.data_ptr(),
        x.stride(0),
        packed.data_ptr(),
        bias.data_ptr() if bias is not None else None,
        residual.data_ptr() if residual is not None else None,
        out.data_ptr(),
        rows,
        inner,
        columns,
        torch.get_num_threads(),
    )
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> torch.Tensor:
    """Write the norm to out. x, out [rows, hidden] or [rows, heads, head_dim], dense rows; weight float32."""
    heads, width = (x.shape[1], x.shape[2]) if x.dim() == 3 else (1, x.shape[1])
    LIBRARY.graft_rms_norm(  # type: ignore[union-attr]
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        out.data_ptr(),
        out.stride(0),
        x.shape[0],
        heads,
        width,
        eps,
        torch.get_num_threads(),
    )
    return out


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [rows, heads, head_dim], dense rows, in place; cos and sin [rows, 1, rotated], contiguous."""
    rows, heads, head_dim = x.shape
    LIBRARY.graft_rotate(  # type: ignore[union-attr]
        x.data_ptr(),
        x.stride(0),
        cos.data_ptr(),
        sin.data_ptr(),
        rows,
        heads,
        head_dim,
        cos.shape[2],
        torch.get_num_threads(),
    )


def silu_gated(gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Compute gate_up [rows, 2 * inter], contiguous, to out [rows, inter]."""
    LIBRARY.graft_silu_gated(  # type: ignore[union-attr]
        gate_up.data_ptr(), out.data_ptr(), out.shape[0], out.shape[1], torch.get_num_threads()
    )
    return out
