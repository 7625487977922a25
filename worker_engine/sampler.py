"""Chooses each row's next token: greedy, or sampled from the tempered, truncated distribution."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch

from kernels.transfer import HostCopy, to_device
from worker_engine.protocol import TokenLogprobs
from worker_engine.sampling.edits import edit
from worker_engine.sampling.logprobs import Reporter
from worker_engine.sampling.row import SamplingSource
from worker_engine.sampling.truncation import Draws, draw, most_likely, to_weights, truncate, truncates
from worker_engine.text.structured_output import MaskBatch


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One row's next token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class SampledRows:
    """One step's tokens, which the device may still be computing.

    Attributes:
        ids: int64 [rows] on the device, -1 where the row's logits are not finite.
    """

    ids: torch.Tensor
    _copy: HostCopy
    _reporter: Reporter | None

    def collect(self) -> list[SampledToken | None]:
        """Return one token per row, None where the row's logits are not finite. Waits for the device."""
        told = self._copy.wait().tolist()
        if self._reporter is None:
            return [None if token < 0 else SampledToken(token) for token in told]
        rows = len(self.ids)
        reports = self._reporter.read(told[rows:])
        return [
            None if token < 0 else SampledToken(int(token), reports.get(row))
            for row, token in enumerate(told[:rows])
        ]


class Sampler:
    """Chooses the tokens of a batch in one pass of tensor operations, and one copy to the host.

    A row depends only on its own logits and random stream, so a seed gives the same tokens in any batch.
    """

    def __init__(self, masks: MaskBatch) -> None:
        self._masks = masks

    @torch.inference_mode()
    def launch(self, logits: torch.Tensor, sequences: Rows[SamplingSource]) -> SampledRows:
        """Choose one token per row; on CUDA it does not wait for the device.

        Args:
            logits: float32 [rows, vocab]; changed in place where a request requires it.
        """
        # One pass finds NaN and infinities alike: any of them makes the sum NaN or infinite.
        finite = torch.isfinite(logits.sum(dim=-1))
        rows = [sequence.sampling for sequence in sequences]
        if all(row.plain for row in rows):
            ids = torch.where(finite, most_likely(logits), -1)
            return SampledRows(ids, HostCopy.start(ids), None)
        reporter = Reporter.build(logits, [row.params.logprobs for row in rows])
        edit(logits, sequences, self._masks)
        chosen = _choose(logits, sequences)
        ids = torch.where(finite, chosen, -1)
        if reporter is None:
            return SampledRows(ids, HostCopy.start(ids), None)
        # Tokens are exact in float64, so that one copy takes everything.
        told = torch.cat([ids.double(), reporter.table(chosen).flatten()])
        return SampledRows(ids, HostCopy.start(told), reporter)


def _choose(logits: torch.Tensor, sequences: Rows[SamplingSource]) -> torch.Tensor:
    params = [sequence.sampling.params for sequence in sequences]
    random = [row for row, item in enumerate(params) if not item.greedy]
    if not random:
        return most_likely(logits)
    device = logits.device
    ids = (
        most_likely(logits) if len(random) < len(params) else logits.new_empty(len(logits), dtype=torch.int64)
    )
    numbers = [sequences[row].sampling.uniform(sequences[row].next_index) for row in random]
    draws = Draws.build([params[row] for row in random], numbers, logits.shape[1], device)
    weights = to_weights(_take(logits, random), draws.temperature)
    cut = [place for place, row in enumerate(random) if truncates(params[row])]
    if len(cut) == len(random):
        truncate(weights, draws)
    elif cut:
        at = _index(cut, device)
        weights[at] = truncate(weights[at], draws.take(at))
    ids[_index(random, device)] = draw(weights, draws)
    return ids


def _take(values: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Return the given rows; a copy unless they are all rows."""
    return values if len(rows) == len(values) else values[_index(rows, values.device)]


def _index(rows: list[int], device: torch.device) -> torch.Tensor:
    return to_device(np.array(rows, dtype=np.int64), device)
