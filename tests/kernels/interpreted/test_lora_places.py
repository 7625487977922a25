"""LoRA rows at arbitrary places of a pool, as the worker's tables name them."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from kernels.lora import LoraWeights, gpu
from kernels.lora.plan import Plan
from kernels.lora.rank_rows import RankRows
from tests.kernels.interpreted.lora_case import Case, poison


@pytest.mark.parametrize("step", [8, 1], ids=["aligned", "odd"])
@pytest.mark.parametrize("row_adapter", [[2, 0, -1, 1], [0] * 5 + [2] * 9 + [-1, 1]], ids=["single", "few"])
def test_rows_anywhere_in_a_pool(row_adapter: list[int], step: int) -> None:
    case = Case.random([4, 17, 3], [64, 32], 48, row_adapter)
    draw, size = random.Random(step), 64 + step
    homes = list(range(400))
    draw.shuffle(homes)
    pool = torch.full((400 * size,), float("nan"))
    places: list[list[int]] = [[], []]
    bounds: list[list[tuple[int, int]]] = [[] for _ in case.widths]
    for adapter, piece in itertools.product(range(3), range(2)):
        first, pair = len(places[0]), case.pairs[piece][adapter]
        assert pair is not None
        for row in range(pair.rank):
            for side, matrix in enumerate((pair.a, pair.b)):
                places[side].append(homes.pop() * size)
                pool[places[side][-1] :][: matrix.shape[1]] = matrix[row]
        bounds[piece].append((first, len(places[0])))
    table = torch.tensor(places)
    rows = RankRows.placed(
        pool.view(400, size),
        table,
        torch.ones(table.shape[1]),
        tuple(map(tuple, bounds)),
        case.weights.layout.columns,
        48,
        aligned=step == 8,
        b_stacked=False,
    )
    assert rows.aligned == (step == 8)
    plan = poison(Plan.build(row_adapter, rows))
    for fused in (True, False):
        out = case.out.clone()
        gpu.run(out, case.x, rows, plan, fused=fused)
        case.check(out)
    gathered = LoraWeights.of_rows(rows, case.weights.layout)
    for piece, by_adapter in enumerate(case.pairs):
        for pair, found in zip(by_adapter, gathered.pairs[piece], strict=True):
            assert pair is not None
            assert found is not None
            assert torch.equal(pair.a, found.a)
            assert torch.equal(pair.b, found.b)
