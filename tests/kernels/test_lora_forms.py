"""The forms of multi-LoRA on the CPU: lm_head, embedding, weighted mixes, DoRA."""

from __future__ import annotations

import pytest
import torch

from kernels.lora import LoraPair, Owners, Segments, apply_lora, concatenate, embed_lora, reference
from tests.kernels.lora_case import DTYPES, Case, widen, within_twice

pytestmark = pytest.mark.usefixtures("poisoned_memory", "rows_by")


@pytest.mark.parametrize("vocabulary", [2049, 49152])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lm_head(vocabulary: int, dtype: torch.dtype) -> None:
    case = Case.random((vocabulary,), 48, (8, 4, 8), [2, -1, 0, 1], dtype)
    case.check(case.run())


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_weighted_adapters_on_one_row(dtype: torch.dtype) -> None:
    case = Case.random((20, 12), 24, (4, 9, 2), [0, 3, -1, 3, 1, 4], dtype, holes=True)
    mixes = [[(0, 0.5), (2, -2.0)], [(1, 1.0), (1, 0.25), (0, 3.0)]]
    joined = [[*row, *(LoraPair.mixed([(row[i], w) for i, w in mix]) for mix in mixes)] for row in case.pairs]
    weights = concatenate(joined, case.widths, Owners())
    assert weights is not None
    out = case.base.clone()
    apply_lora(out, case.x, weights, Segments.group(case.rows))
    by_row = [[] if i < 0 else [(i, 1.0)] if i < 3 else mixes[i - 3] for i in case.rows]
    exact = reference.mix(case.base.double(), case.x.double(), widen(case.pairs), case.widths, by_row)
    within_twice(out, reference.mix(case.base, case.x, case.pairs, case.widths, by_row), exact)
    assert torch.equal(out[2], case.base[2])
    assert LoraPair.mixed([(None, 1.0)]) is None


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dora_gain_spares_the_bias_and_other_rows(dtype: torch.dtype, with_bias: bool) -> None:
    case = Case.random((20, 30), 36, (4, 6, 4, 0), [1, -1, 0, 2, 2, 3], dtype, holes=True)
    gain = torch.rand(4, 50, generator=torch.Generator().manual_seed(1)) + 0.5
    gain[2] = 1
    dora = {"gain": gain, **({"bias": torch.randn(50).to(dtype)} if with_bias else {})}
    out = case.run(**dora)
    case.check(out, **dora)
    assert torch.equal(out[3:5], case.run()[3:5])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [[1, -1, 0, 2], [0] * 40 + [2, 1, 1, -1], [3, -1, 3]])
def test_embedding(dtype: torch.dtype, rows: list[int]) -> None:
    case = Case.random((42,), 431, (3, 0, 8, 8), rows, dtype)
    tokens = [(row * 97) % 431 for row in range(len(rows) - 1)] + [430]
    out = case.base.clone()
    embed_lora(out, torch.tensor(tokens), case.weights, Segments.group(rows))
    exact = reference.embed_lora(case.base.double(), tokens, widen(case.pairs)[0], rows)
    within_twice(out, reference.embed_lora(case.base, tokens, case.pairs[0], rows), exact)
    untouched = torch.tensor(rows) < 0
    assert torch.equal(out[untouched], case.base[untouched])
