"""Adds draft tokens to a step's decode rows, and evaluates their samples."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Final

import torch

from contracts.adapters.reference import AdapterRef
from worker_engine.config import VERIFIED_ROWS
from worker_engine.draft import Draft, drafts_of
from worker_engine.sampler import SampledToken
from worker_engine.scheduler import Chunk, Scheduler
from worker_engine.sequence import Sequence
from worker_engine.speculation.acceptance import Acceptance, KnownAcceptance
from worker_engine.speculation.base import Proposer
from worker_engine.speculation.costs import StepCosts, step_clock
from worker_engine.speculation.counts import BASE, SpeculationCounts
from worker_engine.speculation.lengths import Lengths, Offer
from worker_engine.speculation.rejection import accepted_tokens


class Speculator:
    """Chooses the draft tokens that each step verifies. Runs in the engine's thread.

    Attributes:
        counts: for the metrics.
        clock: clock for step times, in seconds.
    """

    def __init__(self, proposer: Proposer, *, most: int, device: torch.device, eos: frozenset[int]) -> None:
        """Set up speculation with the given proposer.

        Args:
            most: most drafts of one sequence and step.
            device: the device that steps run on.
            eos: token ids that end a completion.
        """
        self._proposer, self._most, self._eos = proposer, most, eos
        self._costs = StepCosts(device.type)
        self.clock: Final = step_clock(device)
        self._lengths = Lengths(self._costs, proposer)
        self._known = KnownAcceptance()
        self._acceptance: dict[Sequence, Acceptance] = {}
        self._guessed: dict[Sequence, Items[int]] = {}
        self.counts = SpeculationCounts()

    def extend(self, chunks: list[Chunk], scheduler: Scheduler) -> list[Chunk]:
        """Return the step's chunks, with draft tokens added to decode rows.

        Drafts only use rows and pages that are free; they preempt nothing.
        """
        self._guessed.clear()
        decoding = [chunk for chunk in chunks if chunk.samples]
        wanted = [
            (chunk.sequence, most)
            for chunk in decoding
            if chunk.count == 1 and (most := min(self._most, chunk.sequence.num_tokens_left - 1)) > 0
        ]
        if not wanted:
            return chunks
        rows = sum(chunk.count for chunk in chunks)
        room = min(scheduler.max_tokens - rows, max(VERIFIED_ROWS, len(decoding)) - len(decoding))
        drafts = self._drafts(wanted, decoding=len(decoding), rows=rows, room=room)
        self.counts.note_length(sum(map(len, drafts.values())), len(decoding))
        if not drafts:
            return chunks
        return [self._lengthen(chunk, drafts.get(chunk.sequence, ()), scheduler) for chunk in chunks]

    def settle(
        self, sequence: Sequence, drafts: Items[Draft], sampled: Items[SampledToken | None]
    ) -> Items[SampledToken | None]:
        """Return the sequence's tokens of a step (see `kept`) and update the statistics.

        Args:
            sampled: [1 + drafts] the samples of its rows.
        """
        taken = accepted_tokens(drafts, sampled)
        guessed = self._guessed.pop(sequence, ())
        if guessed:
            self._observe(sequence, guessed, taken)
        if drafts:
            self.counts.add(_label(sequence), len(drafts), len(taken) - 1)
        return taken

    def observe(self, rows: int, began: float) -> None:
        """Record the time of a step without prefills that began when `clock` returned `began`, and is done
        now.
        """
        self._costs.observe(rows, self.clock() - began)

    def forget(self, sequence: Sequence) -> None:
        """Release the state of a finished sequence."""
        self._acceptance.pop(sequence, None)
        self._guessed.pop(sequence, None)
        self._proposer.forget(sequence)

    def close(self) -> None:
        self._proposer.close()

    def _drafts(
        self, wanted: list[tuple[Sequence, int]], *, decoding: int, rows: int, room: int
    ) -> dict[Sequence, tuple[Draft, ...]]:
        guesses: list[list[int]] = []
        if self._proposer.free:
            guesses = self._proposer.propose(wanted)
            wanted = [(sequence, len(guess)) for (sequence, _), guess in zip(wanted, guesses, strict=True)]
        offers = [Offer(self._acceptance_of(sequence).rate, most) for sequence, most in wanted if most]
        lengths = iter(self._lengths.choose(offers, decoding=decoding, rows=rows, room=room))
        requests = [(sequence, next(lengths) if most else 0) for sequence, most in wanted]
        if not self._proposer.free:
            requests = [(sequence, length) for sequence, length in requests if length]
            guesses = self._proposer.propose(requests) if requests else []
        self._guessed = {
            sequence: guess for (sequence, _), guess in zip(requests, guesses, strict=True) if guess
        }
        found = {
            sequence: drafts_of(sequence, guess[:length], self._ends(sequence))
            for (sequence, length), guess in zip(requests, guesses, strict=True)
            if length and guess
        }
        return {sequence: drafts for sequence, drafts in found.items() if drafts}

    def _ends(self, sequence: Sequence) -> frozenset[int]:
        params = sequence.request.sampling
        named = frozenset(params.stop_token_ids)
        return named if params.ignore_eos else named | self._eos

    def _lengthen(self, chunk: Chunk, drafts: tuple[Draft, ...], scheduler: Scheduler) -> Chunk:
        drafts = drafts[: scheduler.allocate_draft_pages(chunk.sequence, len(drafts))] if drafts else drafts
        return replace(chunk, drafts=drafts) if drafts else chunk

    def _observe(self, sequence: Sequence, guessed: Items[int], taken: Items[SampledToken | None]) -> None:
        right = 0
        for guess, token in zip(guessed, taken, strict=False):
            if token is None or token.token_id != guess:
                break
            right += 1
        tried = right + (right < min(len(guessed), len(taken)))
        self._acceptance_of(sequence).observe(right, tried)
        self._known.get_or_create(_content(sequence)).observe(right, tried)

    def _acceptance_of(self, sequence: Sequence) -> Acceptance:
        acceptance = self._acceptance.get(sequence)
        if acceptance is None:
            expected = self._known.get_or_create(_content(sequence)).rate
            acceptance = self._acceptance[sequence] = Acceptance(expected)
        return acceptance


def _content(sequence: Sequence) -> str:
    return "" if sequence.adapter is None else sequence.adapter.sha256


def _label(sequence: Sequence) -> str:
    adapter = sequence.request.adapter
    if isinstance(adapter, AdapterRef):
        return adapter.name
    return BASE if sequence.adapter is None else f"mix.{sequence.adapter.sha256[:12]}"
