"""Draft tokens by a smaller model of the same vocabulary, which tracks each sequence in its own KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.config import EngineConfig, step_tokens
from worker_engine.errors import ConfigError
from worker_engine.memory_pool import MemoryPool, pages_for
from worker_engine.model_runner import ModelRunner
from worker_engine.models import load_config
from worker_engine.protocol import GenerateRequest, SamplingParams
from worker_engine.sampler import Sampler
from worker_engine.scheduler import Chunk
from worker_engine.sequence import Sequence
from worker_engine.speculation.base import Proposer
from worker_engine.speculation.costs import StepCosts, step_clock
from worker_engine.text.structured_output import MaskBatch
from worker_engine.text.tokenizer import ChatTokenizer


class DraftModel(Proposer):
    """Drafts with a smaller base model and no adapters; their effect shows in the acceptance rate.

    Each sequence has a shadow with the same tokens, and pages of this model's own pool. A draft token is
    sampled with the random number of the sequence's own sample, and with the same temperature and truncation.
    """

    free: ClassVar[bool] = False

    def __init__(
        self,
        config: EngineConfig,
        folder: Path,
        model: ModelConfig,
        tokenizer: ChatTokenizer,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Load the draft model.

        Raises:
            ConfigError: the draft's vocabulary is not the model's, or its KV cache has no room.
            CheckpointError: the draft cannot be loaded.
        """
        drafting = load_config(folder)
        _demand_vocabulary(folder, tokenizer)
        self._vocab = min(model.vocab_size, drafting.vocab_size)
        own = replace(
            config,
            model=folder,
            memory_gib=config.draft_memory_gib,
            max_model_len=0,
            max_adapters_per_batch=1,
            adapters_dir=None,
            merge_adapter="off",
            speculation="off",
            draft_model=None,
        )
        self._runner = ModelRunner(own, drafting, dtype=dtype, device=device)
        self._runner.warm_up()
        self._pool = MemoryPool(self._runner.pool.num_pages)
        self._rows = step_tokens(own, device.type)
        self._sampler = Sampler(MaskBatch())
        self._shadows: dict[Sequence, _Shadow] = {}
        self._costs, self._clock = StepCosts(device.type), step_clock(device)

    @property
    def num_pages_used(self) -> int:
        return self._pool.num_used

    def propose(self, wanted: Items[tuple[Sequence, int]]) -> list[list[int]]:
        shadows = [self._follow(sequence, most) for sequence, most in wanted]
        most_of = {own: most for own, (_, most) in zip(shadows, wanted, strict=True) if own is not None}
        guesses: dict[Sequence, list[int]] = {own: [] for own in most_of}
        chunks = self._catch_up(most_of)
        while chunks:
            guessing = self._step(chunks, guesses)
            chunks = [Chunk(own, 1) for own in guessing if len(guesses[own]) < most_of[own]]
        return [[] if own is None else guesses[own] for own in shadows]

    def seconds(self, sequences: int, longest: int) -> float:
        return longest * self._costs.seconds(sequences) if self._costs.measured else 0.0

    def forget(self, sequence: Sequence) -> None:
        shadow = self._shadows.pop(sequence, None)
        if shadow is not None:
            self._pool.free(shadow.own.pages)

    def close(self) -> None:
        self._shadows.clear()
        self._runner.close()
        del self._runner

    def _follow(self, sequence: Sequence, most: int) -> Sequence | None:
        """Return the shadow with the sequence's tokens and room for `most` drafts; None without room."""
        shadow = self._shadows.get(sequence)
        if shadow is None:
            shadow = self._shadows[sequence] = _Shadow(_shadow_of(sequence))
        shadow.follow(sequence.token_ids)
        own, total = shadow.own, len(sequence.token_ids) + most
        if total > self._runner.max_model_len:
            return None
        missing = max(0, pages_for(total) - len(own.pages))
        if not self._pool.can_allocate(missing):
            self._reclaim()
            if not self._pool.can_allocate(missing):
                return None
        own.pages += self._pool.allocate(missing)
        return own

    def _reclaim(self) -> None:
        """Free the pages of preempted sequences."""
        for sequence, shadow in self._shadows.items():
            if not sequence.num_computed:
                self._pool.free(shadow.own.pages)
                shadow.own.pages, shadow.own.num_computed = [], 0

    def _catch_up(self, shadows: Iterable[Sequence]) -> list[Chunk]:
        """Return chunks of tokens the shadows lack, within a step's rows; incomplete ones draft later."""
        chunks, budget = [], self._rows
        for own in shadows:
            count = min(own.num_remaining, budget)
            if count:
                chunks.append(Chunk(own, count))
                budget -= count
        return chunks

    def _step(self, chunks: list[Chunk], guesses: dict[Sequence, list[int]]) -> list[Sequence]:
        """Run one forward pass; return the shadows that got a draft token."""
        began = self._clock()
        logits, sampled = self._runner.run(chunks, self._pool.take_fresh())
        if not sampled:
            return []
        drawn = self._sampler.launch(logits[:, : self._vocab].contiguous(), sampled).collect()
        guessing = []
        for own, token in zip(sampled, drawn, strict=True):
            if token is not None:
                own.token_ids.append(token.token_id)
                guesses[own].append(token.token_id)
                guessing.append(own)
        if all(chunk.count == 1 for chunk in chunks):
            self._costs.observe(len(chunks), self._clock() - began)
        return guessing


@dataclass(slots=True)
class _Shadow:
    """A sequence's counterpart in the draft model.

    Attributes:
        own: the sequence's tokens, followed by drafts of the last step.
        known: how many of them were the sequence's when they were last compared.
    """

    own: Sequence
    known: int = 0

    def follow(self, token_ids: Items[int]) -> None:
        """Adopt the sequence's tokens; keep what was computed of accepted drafts, and drop the others."""
        held, index = self.own.token_ids, self.known
        while index < min(len(held), len(token_ids)) and held[index] == token_ids[index]:
            index += 1
        held[index:] = token_ids[index:]
        self.known = len(token_ids)
        self.own.num_computed = min(self.own.num_computed, index, len(token_ids) - 1)


def _shadow_of(sequence: Sequence) -> Sequence:
    request = sequence.request
    params = SamplingParams(request.sampling.max_tokens, temperature=0.0)
    own = Sequence(
        GenerateRequest(request.request_id, request.prompt_token_ids, params), sequence.detokenizer
    )
    own.sampling = sequence.sampling.bare()
    return own


def _demand_vocabulary(folder: Path, tokenizer: ChatTokenizer) -> None:
    """Raise ConfigError naming a token that differs between the vocabularies."""
    drafts, own = ChatTokenizer(folder).vocabulary(), tokenizer.vocabulary()
    diff = sorted(token for token in drafts.keys() | own.keys() if drafts.get(token) != own.get(token))
    if diff:
        raise ConfigError(
            f"--draft-model {folder} has another vocabulary: {diff[0]!r} is token {drafts.get(diff[0])} "
            f"there and {own.get(diff[0])} in --model; give a checkpoint with the same tokenizer"
        )
