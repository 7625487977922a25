"""Experts in one native call: float64's result in every format, and bits that no other row changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from kernels import native
from kernels.lora import LoraPair, LoraWeights, Owners, concatenate
from kernels.moe.native_experts import Addends, ExpertLora, NativeExperts, bytes_read, route
from kernels.moe.reference import ExpertPairs, sparse_mlp
from kernels.native.matrix import NativeMatrix, pack_codes, pack_lines

pytestmark = pytest.mark.costly("compiles the library")
needed = pytest.mark.usefixtures("loops")
FORMATS = ("bf16", "int8", "int4", "int4-zeros")
HIDDEN, INTER, EXPERTS = 72, 48, 5
ROUNDING = 2**-8
"""Half a unit in bf16's last place, relative."""


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def matrix(out: int, inner: int, form: str, seed: int) -> tuple[NativeMatrix, torch.Tensor]:
    """Return weights in a format, and the numbers that they stand for in float64."""
    if form == "bf16":
        weight = draw(out, inner, seed=seed) * inner**-0.5
        return NativeMatrix(native.pack(weight), None, None, 16, out, inner), weight.double()
    bits, group = (8, inner) if form == "int8" else (4, 24)
    source = torch.Generator().manual_seed(seed)
    low, high, shift = (-127, 128, 0) if bits == 8 else (0, 16, 8)
    codes = torch.randint(low, high, (out, inner), generator=source)
    scales = (torch.rand(out, inner // group, generator=source) + 0.5) / (high * inner**0.5)
    scales = scales.bfloat16()
    zeros = torch.zeros(out, inner // group, dtype=torch.int8)
    if form == "int4-zeros":
        zeros = torch.randint(-8, 8, zeros.shape, generator=source).to(torch.int8)
    lines = [part.double().repeat_interleave(group, dim=1) for part in (zeros, scales)]
    packed = pack_codes(codes.to(torch.uint8 if bits == 4 else torch.int8), bits)
    held = pack_lines(zeros) if form == "int4-zeros" else None
    made = NativeMatrix(packed, pack_lines(scales), held, bits, out, inner)
    return made, (codes.double() - shift - lines[0]) * lines[1]


@dataclass(frozen=True)
class Case:
    experts: NativeExperts
    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def make(cls, form: str, top_k: int = 2, experts: int = EXPERTS) -> Case:
        wide = [matrix(2 * INTER, HIDDEN, form, seed=expert) for expert in range(experts)]
        narrow = [matrix(HIDDEN, INTER, form, seed=100 + expert) for expert in range(experts)]
        made = NativeExperts([m for m, _ in wide], [m for m, _ in narrow], top_k)
        return cls(made, torch.stack([w for _, w in wide]), torch.stack([w for _, w in narrow]))


def pair(rank: int, inner: int, out: int, seed: int) -> LoraPair | None:
    if not rank:
        return None
    return LoraPair(draw(rank, inner, seed=seed) * inner**-0.5, draw(rank, out, seed=seed + 1))


def adapters_of(experts: int) -> list[list[ExpertPairs]]:
    """Return three adapters: of gate, up and down, of down alone, and of the last expert's fused pair."""
    whole = [
        ExpertPairs(
            pair(expert % 3, HIDDEN, INTER, 10 * expert),
            pair(9, HIDDEN, INTER, 10 * expert + 2),
            down=pair(3, INTER, HIDDEN, 10 * expert + 6),
        )
        for expert in range(experts)
    ]
    down = [ExpertPairs(down=pair(5, INTER, HIDDEN, 900 + expert)) for expert in range(experts)]
    last = [ExpertPairs()] * (experts - 1) + [ExpertPairs(fused=pair(16, HIDDEN, 2 * INTER, 777))]
    return [whole, down, last]


def weights_of(
    adapters: Sequence[Sequence[ExpertPairs]], names: Sequence[str], width: int
) -> LoraWeights | None:
    by_name = [[getattr(pairs, name) for held in adapters for pairs in held] for name in names]
    return concatenate(by_name, [width] * len(names), Owners())


def lora_of(adapters: Sequence[Sequence[ExpertPairs]]) -> ExpertLora | None:
    return ExpertLora.build(
        len(adapters[0]),
        weights_of(adapters, ("gate", "up"), INTER),
        weights_of(adapters, ("fused",), 2 * INTER),
        weights_of(adapters, ("down",), HIDDEN),
    )


def double(pairs: ExpertPairs) -> ExpertPairs:
    return ExpertPairs(*(p and LoraPair(p.a.double(), p.b.double()) for p in pairs))


def choices(rows: int, top_k: int, experts: int = EXPERTS) -> tuple[torch.Tensor, torch.Tensor]:
    return route(draw(rows, experts, seed=4), top_k, normalize=bool(rows % 2))


def owners_of(rows: int) -> list[int]:
    return [(row * 5) % 4 - 1 for row in range(rows)]


@needed
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("rows", "top_k"), [(1, 1), (1, 2), (2, 5), (7, 2), (33, 3), (100, 2)])
def test_a_layer_equals_float64(form: str, rows: int, top_k: int) -> None:
    """As near as roundings of both, inner and y to bf16, which the model's own sums do, allow."""
    case, x = Case.make(form, top_k), draw(rows, HIDDEN, seed=3)
    weights, chosen = choices(rows, top_k)
    addends = Addends(draw(rows, HIDDEN, seed=6), draw(rows, HIDDEN, seed=7), draw(rows, 1, seed=8))
    assert addends.shared is not None
    assert addends.shared_scale is not None
    assert addends.residual is not None
    added = addends.shared.double() * addends.shared_scale.double().sigmoid() + addends.residual.double()
    adapters = adapters_of(EXPERTS)
    exact = [[double(pairs) for pairs in held] for held in adapters]
    for owners in ([-1] * rows, owners_of(rows)):
        wanted = sparse_mlp(x.double(), weights.double(), chosen, case.gate_up, case.down, exact, owners)
        found = case.experts(x, weights, chosen, addends, lora_of(adapters), owners)
        error = (found.double() - wanted - added).abs()
        assert error.max() <= 3 * ROUNDING * (wanted.abs().max() + added.abs().max()), form
        assert error.mean() <= 2 * ROUNDING * (wanted.abs().mean() + added.abs().mean()), form


@needed
@pytest.mark.parametrize("form", FORMATS)
def test_a_row_does_not_depend_on_the_others(form: str) -> None:
    """Bit for bit, base rows and rows of adapters, with adapters loaded and without, on 1 thread and on 2."""
    case, x, rows = Case.make(form), draw(21, HIDDEN, seed=3), 21
    weights, chosen = choices(rows, 2)
    lora, owners = lora_of(adapters_of(EXPERTS)), owners_of(rows)
    together = case.experts(x, weights, chosen, Addends(), lora, owners)
    for row in range(rows):
        one = slice(row, row + 1)
        held = (lora, owners[one]) if owners[row] >= 0 else (None, ())
        assert torch.equal(case.experts(x[one], weights[one], chosen[one], Addends(), *held), together[one])
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            assert torch.equal(case.experts(x, weights, chosen, Addends(), lora, owners), together)
    finally:
        torch.set_num_threads(threads)


@needed
def test_only_chosen_experts_are_read() -> None:
    """Others, and adapters that no row has, may hold anything; bytes are counted once per expert."""
    case, x = Case.make("bf16"), draw(3, HIDDEN, seed=3)
    weights, chosen = torch.full((3, 2), 0.5), torch.tensor([[0, 3], [3, 0], [3, 0]])
    adapters = adapters_of(EXPERTS)
    wanted = case.experts(x, weights, chosen, Addends(), lora_of(adapters), [1, -1, 1])
    bytes_read()
    case.experts(x, weights, chosen, Addends(), lora_of(adapters), [1, -1, 1])
    padded = HIDDEN + 8  # 72 columns lie in 5 blocks
    of_down = 2 * 5 * (INTER + HIDDEN) * 2  # two experts have rows of an adapter of rank 5
    assert bytes_read() == (2 * (2 * INTER * HIDDEN + padded * INTER) * 2, of_down)
    for index in (1, 2, 4):
        case.experts._matrices[index].codes.fill_(torch.nan)
        case.experts._matrices[EXPERTS + index].codes.fill_(torch.nan)
    for held in (adapters[0], adapters[2]):
        for pairs in held:
            for p in pairs:
                if p is not None:
                    p.a.fill_(torch.nan)
                    p.b.fill_(torch.nan)
    assert torch.equal(case.experts(x, weights, chosen, Addends(), lora_of(adapters), [1, -1, 1]), wanted)


@needed
def test_nan_in_a_row_stays_there() -> None:
    case, x = Case.make("bf16"), draw(6, HIDDEN, seed=3)
    weights, chosen = choices(6, 2)
    lora, owners = lora_of(adapters_of(EXPERTS)), [0, 1, -1, 2, 0, -1]
    clean = case.experts(x, weights, chosen, Addends(), lora, owners)
    x[4] = torch.nan
    dirty = case.experts(x, weights, chosen, Addends(), lora, owners)
    rows = [0, 1, 2, 3, 5]
    assert torch.equal(clean[rows], dirty[rows])
    assert dirty[4].isnan().all()


@needed
@pytest.mark.parametrize("experts", [4, 16, 37])
def test_route_equals_a_softmax(experts: int) -> None:
    logits = draw(19, experts, seed=1) * 3
    for top_k in (1, 3, experts if experts < 10 else 8):
        for normalize in (False, True):
            weights, chosen = route(logits, top_k, normalize=normalize)
            wanted = torch.softmax(logits.double(), dim=1)
            assert all(len(set(row)) == top_k for row in chosen.tolist())
            picked = wanted.gather(1, chosen)
            assert torch.equal(picked, wanted.topk(top_k).values), "ties may be told apart otherwise"
            picked = picked / picked.sum(1, keepdim=True) if normalize else picked
            assert torch.allclose(weights.double(), picked, rtol=1e-5, atol=0)


@needed
def test_route_takes_the_first_of_equal_logits_and_survives_nan() -> None:
    assert route(torch.zeros(1, 6).bfloat16(), 3, normalize=True)[1].tolist() == [[0, 1, 2]]
    chosen = route(torch.full((1, 6), torch.nan).bfloat16(), 3, normalize=True)[1]
    assert chosen.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("form", FORMATS)
def test_avx2_gives_the_bits_of_avx512(take_loops: Callable[[str], None], form: str) -> None:
    found = []
    for name in ("avx512", "avx2"):
        take_loops(name)
        case, x = Case.make(form), draw(19, HIDDEN, seed=3)
        weights, chosen = choices(19, 2)
        lora = lora_of(adapters_of(EXPERTS))
        found.append(case.experts(x, weights, chosen, Addends(x), lora, owners_of(19)))
    assert torch.equal(*found)


@needed
def test_what_does_not_fit_is_refused() -> None:
    case, x = Case.make("bf16"), draw(2, HIDDEN, seed=3)
    weights, chosen = choices(2, 2)
    lora = lora_of(adapters_of(EXPERTS))
    for given in (
        (x[:, :-1], weights, chosen, Addends()),
        (x.float(), weights, chosen, Addends()),
        (x, weights[:, :1], chosen, Addends()),
        (x, weights.double(), chosen, Addends()),
        (x, weights, chosen + EXPERTS, Addends()),
        (x, weights, chosen - EXPERTS, Addends()),
        (x, weights, chosen, Addends(x[:1])),
        (x, weights, chosen, Addends(), lora, [0]),
        (x, weights, chosen, Addends(), lora, [0, 3]),
    ):
        with pytest.raises(ValueError, match=r"expected|are not"):
            case.experts(*given)
    odd = matrix(2 * 24, HIDDEN, "bf16", 1)[0], matrix(HIDDEN, 24, "bf16", 1)[0]
    mixed = [matrix(2 * INTER, HIDDEN, form, 1)[0] for form in ("bf16", "int8")]
    assert not NativeExperts.fits(odd[:1], odd[1:])
    assert not NativeExperts.fits(mixed, [matrix(HIDDEN, INTER, "bf16", 1)[0]] * 2)
    with pytest.raises(ValueError, match="differ in form"):
        NativeExperts(odd[:1], odd[1:], 1)
