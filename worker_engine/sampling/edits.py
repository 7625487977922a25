"""Changes to a batch's logits before tokens are chosen: biases, bans, penalties, grammars' masks.

Order and formulas are vLLM's: allowed tokens, bans and biases, then the repetition penalty, which divides
positive and multiplies negative logits of every token in prompt and completion, then the frequency penalty
per occurrence in the completion, then the presence penalty. What a grammar forbids stays forbidden whatever
the rest does. A grammar begins after the thought, and the end of a thought whose budget is spent comes last.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.transfer import to_device
from worker_engine.sampling.row import Ids, SamplingRow, SamplingSource, TokenCounts, Values
from worker_engine.text.structured_output import MaskBatch


def edit(logits: torch.Tensor, sequences: Items[SamplingSource], masks: MaskBatch) -> None:
    """Changes `logits`, float32 [rows, vocab], in place; rows that ask for nothing keep their bits."""
    rows = [(index, sequence) for index, sequence in enumerate(sequences) if sequence.sampling.edited]
    _keep_allowed(logits, rows)
    _add_biases(logits, rows)
    _penalise(logits, [(index, *_counted(item)) for index, item in rows if item.sampling.counts is not None])
    thoughts = [(index, item.sampling.thought) for index, item in rows if item.sampling.thought is not None]
    openings = [
        (index, opening, logits[index, opening].clone())
        for index, thought in thoughts
        if (opening := thought.opening) is not None
    ]
    masks.apply(
        logits,
        [
            (index, item.sampling.grammar)
            for index, item in rows
            if item.sampling.grammar is not None and item.sampling.constrained
        ],
    )
    for index, opening, logit in openings:
        logits[index, opening] = logit
    for index, thought in thoughts:
        if (forced := thought.forced) is not None:
            logits[index] = float("-inf")
            logits[index, forced] = 0.0


def _keep_allowed(logits: torch.Tensor, rows: Items[tuple[int, SamplingSource]]) -> None:
    for index, sequence in rows:
        if (allowed := sequence.sampling.allowed) is not None:
            ids = _to(logits, allowed)
            kept = logits[index, ids]
            logits[index] = float("-inf")
            logits[index, ids] = kept


def _add_biases(logits: torch.Tensor, rows: Items[tuple[int, SamplingSource]]) -> None:
    where: list[int] = []
    ids: list[Ids] = []
    values: list[Values] = []
    for index, sequence in rows:
        row = sequence.sampling
        banned = row.banned(sequence.token_ids, sequence.next_index)
        where += [index] * (len(row.bias_ids) + len(banned))
        ids += [row.bias_ids, banned]
        values += [row.bias_values, np.full(len(banned), -np.inf, np.float32)]
    if where:
        at = (_to(logits, np.array(where)), _to(logits, np.concatenate(ids)))
        logits.index_put_(at, _to(logits, np.concatenate(values)), accumulate=True)


def _counted(sequence: SamplingSource) -> tuple[SamplingRow, TokenCounts]:
    counts = sequence.sampling.counts
    if counts is None:
        raise ValueError("sequence.sampling.counts is None: this row has no penalties")
    counts.follow(sequence.token_ids)
    return sequence.sampling, counts


def _penalise(logits: torch.Tensor, rows: Items[tuple[int, SamplingRow, TokenCounts]]) -> None:
    if not rows:
        return
    sizes = [len(counts.ids) for _, _, counts in rows]
    params = np.array(
        [
            (row.params.repetition_penalty, row.params.frequency_penalty, row.params.presence_penalty)
            for _, row, _ in rows
        ],
        np.float32,
    )
    repetition, frequency, presence = _to(logits, np.repeat(params, sizes, axis=0)).unbind(1)
    counts = _to(logits, np.concatenate([item.counts for _, _, item in rows]))
    at = (
        _to(logits, np.repeat([index for index, _, _ in rows], sizes)),
        _to(logits, np.concatenate([item.ids for _, _, item in rows])),
    )
    seen = logits[at]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    logits.index_put_(at, seen - frequency * counts - presence * (counts > 0))


def _to(logits: torch.Tensor, values: npt.NDArray[Any]) -> torch.Tensor:
    return to_device(values, logits.device)
