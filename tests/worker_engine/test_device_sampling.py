"""Sampling on CUDA asks the device for nothing until its one copy to the host.

Tensors here have no values, and are on a device that is not a CPU. Every operation is watched: one that needs
a value on the host (`item`, `tolist`, `nonzero`, a mask as an index, a branch on a tensor), or that copies
between devices by itself, raises. Copies to the device go through `to_device`, which takes pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.worker_engine.conftest import request
from tests.worker_engine.tiny_model import byte_tokenizer
from worker_engine import sampler
from worker_engine.protocol import Grammar, GrammarKind
from worker_engine.sampler import Sampler
from worker_engine.sampling import edits, logprobs, truncation
from worker_engine.sampling.row import SamplingRow
from worker_engine.sequence import Sequence
from worker_engine.text import structured_output
from worker_engine.text.structured_output import GrammarCompiler, GrammarState, MaskBatch

DEVICE = torch.device("meta")
WAIT = {"_local_scalar_dense", "nonzero", "masked_select", "item", "unique_dim", "_unique2"}
VOCAB = 256


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations for which the host would wait for a GPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        masks = [item for item in tensors[1:] if name.startswith("index") and item.dtype == torch.bool]
        result = func(*args, **(kwargs or {}))
        made = result.device if isinstance(result, torch.Tensor) else None
        crosses = any(item.device != made for item in tensors) and made is not None and name in COPIES
        if (any(item.device == DEVICE for item in tensors) and (name in WAIT or masks)) or crosses:
            raise RuntimeError(f"{name} waits for the device")
        return result


def on_host_only(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.tensor` copies Python's numbers from pageable memory, below what the watch sees."""

    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.device(kwargs.get("device") or "cpu") == DEVICE:
            raise RuntimeError("torch.tensor waits for the device")
        return make(*args, **kwargs)

    return made


COPIES = {"_to_copy", "copy_", "copy", "clone"}


@dataclass
class Transfers:
    """Copies that the code under test asked for."""

    to_device: int = 0
    to_host: list[tuple[int, ...]] = field(default_factory=list)


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Transfers]:
    seen = Transfers()

    def to_device(values: npt.NDArray[Any] | torch.Tensor, device: torch.device) -> torch.Tensor:
        held = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
        seen.to_device += 1
        return torch.empty(held.shape, dtype=held.dtype, device=device)

    class Copy:
        @staticmethod
        def start(tensor: torch.Tensor) -> None:
            assert tensor.device == DEVICE
            seen.to_host.append(tuple(tensor.shape))

    for module in (sampler, structured_output, edits, logprobs, truncation):
        monkeypatch.setattr(module, "to_device", to_device)
    monkeypatch.setattr(sampler, "HostCopy", Copy)
    monkeypatch.setattr(torch, "tensor", on_host_only(torch.tensor))
    with Watch():  # type: ignore[no-untyped-call]
        yield seen


@pytest.fixture(scope="module")
def grammar(tmp_path_factory: pytest.TempPathFactory) -> GrammarState:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return GrammarCompiler(folder, VOCAB, [255]).start(Grammar(GrammarKind.REGEX, "[ab]+"))


def sequence(grammar: GrammarState | None = None, **sampling: Any) -> Sequence:
    asked = request("r", (1, 2, 3), 100, **({"temperature": 1.0} | sampling))
    made = Sequence(asked, None)  # type: ignore[arg-type]
    made.sampling = SamplingRow(asked.sampling, (1, 2, 3), eos=frozenset({255}), grammar=grammar)
    made.token_ids += (4, 5)
    return made


EVERY: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"top_p": 0.5},
    {"top_k": 4},
    {"min_p": 0.1},
    {"top_p": 0.5, "top_k": 4, "min_p": 0.1},
    {"logprobs": 0},
    {"logprobs": 5, "temperature": 0.0},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"logit_bias": ((3, 1.0),)},
    {"min_tokens": 9},
    {"bad_words": ((5, 6), (7,))},
]


@pytest.mark.parametrize("options", EVERY, ids=lambda options: "+".join(options) or "random")
@pytest.mark.parametrize("alone", [True, False])
def test_nothing_waits_for_the_device(options: dict[str, Any], alone: bool, transfers: Transfers) -> None:
    rows = [sequence(**options)] + ([] if alone else [sequence(temperature=0.0), sequence()])
    made = Sampler(MaskBatch(1)).launch(torch.empty(len(rows), VOCAB, device=DEVICE), rows)
    assert made.ids.device == DEVICE
    assert made.ids.shape == (len(rows),)
    assert len(transfers.to_host) == 1


def test_everything_in_one_batch_takes_one_copy(transfers: Transfers, grammar: GrammarState) -> None:
    rows = [sequence(**options) for options in EVERY] + [sequence(grammar)]
    Sampler(MaskBatch(1)).launch(torch.empty(len(rows), VOCAB, device=DEVICE), rows)
    # Ids of all rows; of the two that asked: token, logprob, five most likely and their tokens.
    assert transfers.to_host == [(len(rows) + 2 * 12,)]


def test_greedy_rows_need_nothing_from_the_host(transfers: Transfers) -> None:
    Sampler(MaskBatch(1)).launch(torch.empty(3, VOCAB, device=DEVICE), [sequence(temperature=0.0)] * 3)
    assert transfers.to_device == 0


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.argmax(-1).tolist(),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: (x > 0).nonzero(),
        lambda x: torch.tensor([1, 2], device=x.device),
        lambda x: torch.from_numpy(np.zeros(2)).to(x.device),
    ],
    ids=["tolist", "bool", "mask", "nonzero", "tensor", "pageable"],
)
def test_what_waits_is_found(waits: Callable[[torch.Tensor], object], transfers: Transfers) -> None:
    """The means of these tests: each of these raises where the device would be waited for."""
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        waits(torch.empty(2, 4, device=DEVICE))


def test_real_values_are_collected(tmp_path: Path) -> None:
    """The same objects over real tensors: the single copy's values are read back in the right rows."""
    logits = torch.full((3, VOCAB), -5.0)
    logits[0, 7], logits[1, 9], logits[2, 0] = 5.0, 6.0, float("nan")
    rows = [sequence(temperature=0.0), sequence(temperature=0.0, logprobs=2), sequence(temperature=0.0)]
    first, second, third = Sampler(MaskBatch(1)).launch(logits, rows).collect()
    assert first is not None
    assert second is not None
    assert second.logprobs is not None
    assert (first.token_id, first.logprobs, second.token_id, third) == (7, None, 9, None)
    assert second.logprobs.token_id == 9
    assert second.logprobs.top[0][0] == 9
    assert second.logprobs.logprob == pytest.approx(second.logprobs.top[0][1])
