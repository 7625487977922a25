"""Routing and worklists of experts equal the reference in float64, with adapters of any ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from kernels.activation import gated
from kernels.lora import LoraPair, LoraWeights, Owners, apply_lora, concatenate
from kernels.moe import GroupRule, Worklist, route, route_by_group
from kernels.moe.reference import ExpertPairs, sparse_mlp

HIDDEN, INTER = 12, 8


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(rank: int, inner: int, out: int, seed: int) -> LoraPair | None:
    return LoraPair(draw(rank, inner, seed=seed), draw(rank, out, seed=seed + 1)) if rank else None


def adapters_of(experts: int) -> list[list[ExpertPairs]]:
    """Return three adapters: of all parts, of down alone, and of the last expert's fused pair alone."""
    whole = [
        ExpertPairs(
            pair(expert % 3, HIDDEN, INTER, 10 * expert),
            pair(2, HIDDEN, INTER, 10 * expert + 2),
            pair(1 + expert % 2, HIDDEN, 2 * INTER, 10 * expert + 4),
            pair(3, INTER, HIDDEN, 10 * expert + 6),
        )
        for expert in range(experts)
    ]
    down = [ExpertPairs(down=pair(5, INTER, HIDDEN, 900 + expert)) for expert in range(experts)]
    last = [ExpertPairs()] * (experts - 1) + [ExpertPairs(fused=pair(16, HIDDEN, 2 * INTER, 777))]
    return [whole, down, last]


def stack(adapters: Sequence[Sequence[ExpertPairs]], names: Sequence[str], width: int) -> LoraWeights | None:
    by_name = [[getattr(pairs, name) for held in adapters for pairs in held] for name in names]
    return concatenate(by_name, [width] * len(names), Owners())


def computed(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    adapters: Sequence[Sequence[ExpertPairs]],
    row_adapter: Sequence[int],
) -> torch.Tensor:
    work = Worklist.build(chosen, len(gate_up), row_adapter if row_adapter else None)
    pairs = x[work.rows]
    both = work.multiply(pairs, 2 * INTER, lambda expert, rows: rows @ gate_up[expert].T)
    for names, width in ((("gate", "up"), INTER), (("fused",), 2 * INTER)):
        if work.segments is not None and (held := stack(adapters, names, width)) is not None:
            apply_lora(both, pairs, held, work.segments)
    inner = gated(both)
    y = work.multiply(inner, HIDDEN, lambda expert, rows: rows @ down[expert].T)
    if work.segments is not None and (held := stack(adapters, ("down",), HIDDEN)) is not None:
        apply_lora(y, inner, held, work.segments)
    return work.combine(y, weights)


@pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (4, 2), (7, 3), (7, 7)])
@pytest.mark.parametrize("rows", [1, 2, 15, 17])
def test_a_layer_equals_the_reference(experts: int, top_k: int, rows: int) -> None:
    gate_up, down = draw(experts, 2 * INTER, HIDDEN, seed=1), draw(experts, HIDDEN, INTER, seed=2)
    x = draw(rows, HIDDEN, seed=3)
    weights, chosen = route(draw(rows, experts, seed=4), top_k, normalize=bool(rows % 2))
    for row_adapter in ([], [-1] * rows, [(row * 5) % 4 - 1 for row in range(rows)]):
        adapters = adapters_of(experts)
        wanted = sparse_mlp(x, weights, chosen, gate_up, down, adapters, row_adapter)
        found = computed(x, weights, chosen, gate_up, down, adapters, row_adapter)
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_only_chosen_experts_are_multiplied() -> None:
    work = Worklist.build(torch.tensor([[5, 1], [1, 5], [6, 5]]), 8)
    seen: list[tuple[int, int]] = []

    def product(expert: int, rows: torch.Tensor) -> torch.Tensor:
        seen.append((expert, len(rows)))
        return rows

    work.multiply(torch.zeros(6, 3), 3, product)
    assert seen == [(1, 2), (5, 3), (6, 1)]
    assert work.rows.tolist() == [0, 1, 0, 1, 2, 2]


def test_pairs_of_an_expert_are_sorted_by_adapter_base_rows_first() -> None:
    work = Worklist.build(torch.tensor([[0], [0], [1], [0], [0]]), 2, [1, -1, 0, 0, 1])
    assert work.rows.tolist() == [1, 3, 0, 4, 2]
    assert work.segments is not None
    assert work.segments.adapters == (-1, 0, 2, 2, 1)


def test_weights_of_a_row_sum_to_one_only_where_asked() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    weights, experts = route(logits, 2, normalize=False)
    assert experts.tolist() == [[1, 2]]
    assert torch.allclose(weights, torch.softmax(logits, 1)[:, [1, 2]])
    assert torch.allclose(route(logits, 2, normalize=True)[0].sum(), torch.tensor(1.0))
    for top_k in (0, 4):
        with pytest.raises(ValueError, match="expected 1 to 3"):
            route(logits, top_k, normalize=False)


def test_nan_in_another_row_stays_there() -> None:
    gate_up, down = draw(4, 2 * INTER, HIDDEN, seed=1), draw(4, HIDDEN, INTER, seed=2)
    x = draw(6, HIDDEN, seed=3)
    weights, chosen = route(draw(6, 4, seed=4), 2, normalize=True)
    clean = computed(x, weights, chosen, gate_up, down, adapters_of(4), [0, 1, -1, 2, 0, -1])
    x[4] = torch.nan
    dirty = computed(x, weights, chosen, gate_up, down, adapters_of(4), [0, 1, -1, 2, 0, -1])
    rows = [0, 1, 2, 3, 5]
    assert torch.allclose(clean[rows], dirty[rows])
    assert dirty[4].isnan().all()


def test_groups_limit_the_choice_and_the_correction_is_not_in_the_weights() -> None:
    """The last group has the two best experts together, and the first expert alone is the best of all."""
    logits = torch.tensor([[2.0, -4.0, 0.0, 0.1, 1.0, 1.1]])
    scores = logits.sigmoid()[0]
    rule = GroupRule("sigmoid", groups=3, kept=1, best=2, factor=3.0)
    weights, chosen = route_by_group(logits, 2, rule, normalize=False)
    assert sorted(chosen[0].tolist()) == [4, 5]
    assert torch.allclose(weights, 3.0 * scores[chosen])
    correction = torch.tensor([0.0, 0.0, 0.9, 0.9, 0.0, 0.0])
    weights, chosen = route_by_group(logits, 2, rule, normalize=True, correction=correction)
    assert sorted(chosen[0].tolist()) == [2, 3]
    assert torch.allclose(weights, 3.0 * scores[chosen] / scores[2:4].sum())
    by_best = GroupRule("softmax", groups=3, kept=1, best=1)
    weights, chosen = route_by_group(logits, 2, by_best, normalize=False)
    assert chosen[0].tolist() == [0, 1]
    assert torch.allclose(weights, logits.softmax(-1)[:, :2])


@pytest.mark.parametrize(("top_k", "groups"), [(3, 3), (0, 3), (1, 4)])
def test_a_choice_that_groups_cannot_make_is_refused(top_k: int, groups: int) -> None:
    with pytest.raises(ValueError, match="groups of equal size"):
        route_by_group(torch.zeros(1, 6), top_k, GroupRule("softmax", groups=groups), normalize=False)
