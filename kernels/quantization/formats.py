"""Packing formats of published checkpoints: compressed-tensors', AutoAWQ's and GPTQ's of 3 bits.

compressed-tensors (`pack-quantized`): int32 along a row, the first number in the lowest bits, each shifted by
half its range so that none is negative; 4-bit zeros are packed along the outputs. AutoAWQ (`gemm`): int32
along the *outputs* of the transposed matrix, eight of them in the order 0, 2, 4, 6, 1, 3, 5, 7.

GPTQ: int32 along the inputs of the transposed matrix, the first number in the lowest bits. Numbers of 3 bits
lie without gaps, 32 of them in three words, so that two of them reach into the next word.

MXFP4 (OCP Microscaling; gpt-oss' `blocks` and `scales`, compressed-tensors' `mxfp4-pack-quantized`): uint8
along a row, the first of two codes in the lower half, and a power of two for each 32 inputs as uint8, shifted
by 127.
"""

from __future__ import annotations

from typing import Final

import torch

AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Of eight columns, the one in the n-th lowest nibble."""
_WORD: Final = (1 << 32) - 1


def unpack_rows(packed: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """Unpack int32 [rows, ceil(width * bits / 32)] to uint8 [rows, width]; numbers keep their shift."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    spread: torch.Tensor = (packed[..., None] >> shifts) & (2**bits - 1)
    return spread.flatten(1)[:, :width].to(torch.uint8)


def pack_rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack numbers 0 to 2**bits - 1 as `unpack_rows` reads them; rows are zero-padded."""
    each = 32 // bits
    missing = -codes.shape[1] % each
    if missing:
        codes = torch.cat((codes, codes.new_zeros(codes.shape[0], missing)), 1)
    parts = codes.to(torch.int32).view(codes.shape[0], -1, each)
    words = torch.zeros(parts.shape[:2], dtype=torch.int32)
    for place in range(each):
        words |= parts[..., place] << (bits * place)
    return words


def unpack_columns(packed: torch.Tensor, bits: int, height: int) -> torch.Tensor:
    """Unpack int32 [ceil(height * bits / 32), columns] to uint8 [height, columns] (compressed-tensors)."""
    return unpack_rows(packed.T.contiguous(), bits, height).T.contiguous()


def pack_columns(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack numbers as `unpack_columns` reads them."""
    return pack_rows(codes.T.contiguous(), bits).T.contiguous()


def unpack_awq(packed: torch.Tensor) -> torch.Tensor:
    """Unpack int32 [in or groups, out / 8] to uint8 [out, in or groups]."""
    nibbles = unpack_rows(packed, 4, 8 * packed.shape[1]).view(packed.shape[0], -1, 8)
    codes = torch.empty_like(nibbles)
    codes[..., list(AWQ_ORDER)] = nibbles
    return codes.flatten(1).T.contiguous()


def pack_awq(codes: torch.Tensor) -> torch.Tensor:
    """Pack codes as `unpack_awq` reads them; the outputs must be a multiple of 8."""
    rows = codes.T.contiguous()
    return pack_rows(rows.view(rows.shape[0], -1, 8)[..., list(AWQ_ORDER)].flatten(1), 4)


def unpack_dense(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack int32 [rows, n * bits] to uint8 [rows, 32 n], of numbers without gaps (GPTQ)."""
    words = packed.view(packed.shape[0], -1, bits).long() & _WORD
    words = torch.cat((words, torch.zeros_like(words[..., :1])), -1)
    codes = [
        (((words[..., at // 32] | words[..., at // 32 + 1] << 32) >> at % 32) & (2**bits - 1)).to(torch.uint8)
        for at in range(0, 32 * bits, bits)
    ]
    return torch.stack(codes, -1).flatten(1)


def pack_dense(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack rows of a multiple of 32 numbers as `unpack_dense` reads them."""
    parts = codes.long().view(codes.shape[0], -1, 32)
    words = torch.zeros(*parts.shape[:2], bits + 1, dtype=torch.int64)
    for place in range(32):
        word, shift = divmod(place * bits, 32)
        value = parts[..., place] << shift
        words[..., word] |= value & _WORD
        words[..., word + 1] |= value >> 32
    # int32 holds the same 32 bits.
    return words[..., :bits].to(torch.int32).flatten(1)


def unpack_mxfp4(packed: torch.Tensor) -> torch.Tensor:
    """Unpack uint8 [..., n] to codes uint8 0 to 15 [..., 2 n]; also gpt-oss' blocks [..., groups, 16]."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def pack_mxfp4(codes: torch.Tensor) -> torch.Tensor:
    """Pack an even number of codes as `unpack_mxfp4` reads them."""
    pairs = codes.view(*codes.shape[:-1], -1, 2)
    packed: torch.Tensor = pairs[..., 0] | (pairs[..., 1] << 4)
    return packed


def unpack_e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Convert uint8 to bf16 2^(n - 127) exactly: bf16's exponent is that byte. 0 is subnormal, 255 is NaN."""
    bits = exponents.to(torch.int16) << 7
    bits = bits.masked_fill_(exponents == 0, 0x40).masked_fill_(exponents == 255, 0x7FC0)
    return bits.view(torch.bfloat16)


def pack_e8m0(scales: torch.Tensor) -> torch.Tensor:
    """Convert scales as `unpack_e8m0` reads them: bf16 powers of two from 2^-127 to 2^127, and NaN."""
    exponents = (scales.view(torch.int16) >> 7) & 255
    return exponents.to(torch.uint8)
