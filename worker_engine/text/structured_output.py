"""Completions held to a grammar: compiled off the event loop, kept, turned into masks over the vocabulary.

A grammar that cannot be compiled within the limits is refused by name; one that grows too complex later ends
its own request only.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from kernels.transfer import to_device
from worker_engine.errors import InvalidRequest
from worker_engine.protocol import Grammar, GrammarKind
from worker_engine.round_robin import RoundRobinLock
from worker_engine.text.grammar_library import INTERNAL, compile_source, first_line, read_tokenizer
from worker_engine.text.grammar_limits import check_pattern, check_schema, check_size
from worker_engine.text.grammar_trial import MAX_BYTES, GrammarTrial
from worker_engine.text.schema_loops import without_endless_references
from worker_engine.text.tool_calls.base import WHITESPACE

if TYPE_CHECKING:
    # Loaded at the first grammar: the engine runs without it where no request asks for one.
    import llguidance

MAX_COMPILED: Final = 64
"""Grammars kept; one that is asked for again costs a copy of 10 us instead of milliseconds."""
MAX_COMPILED_BYTES: Final = 128 << 20
"""Of the memory that they were measured to keep."""
TOKEN_SECONDS: Final = 0.0005
"""CPU time that a grammar may take to accept a token: the whole batch waits. Ordinary grammars take 0.02 ms.
An ambiguous grammar takes more with each token, and five times as much for the mask."""
SPARE_SECONDS: Final = 0.1
"""CPU time that a completion may exceed TOKEN_SECONDS by in sum; cheaper tokens reduce the sum."""
MAX_WAITING: Final = 16
"""Grammars of one tenant that may wait to be compiled."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    matcher: llguidance.LLMatcher
    nbytes: int


class GrammarCompiler:
    """Compiles grammars for one tokenizer. `start` is thread-safe."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Items[int]) -> None:
        """The tokenizer is read at the first use: 0.2-0.5 s for 49,152 tokens."""
        self._path, self._vocab_size, self._eos = folder / "tokenizer.json", vocab_size, list(eos_token_ids)
        self._trial = GrammarTrial(self._path, vocab_size, self._eos)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._lock = threading.Lock()
        self._compiling = RoundRobinLock(MAX_WAITING)
        # One thread: a flood of large grammars takes one core, and never the tokenizer's threads.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def prepare(self, grammar: Grammar, param: str, tenant: str = "") -> None:
        """Compiles `grammar` unless it is kept already: in a process apart first, and in turns among tenants.

        Raises:
            InvalidRequest: naming `param`; it is malformed, not supported or too complex.
            TooManyRequests: too many of the tenant's wait.
        """
        if self._cached(grammar) is not None:
            return
        async with self._compiling.hold(tenant):
            if self._cached(grammar) is not None:
                return
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._try, grammar)
            except InvalidRequest as error:
                raise InvalidRequest(f"{param}: {error}", param=param) from error

    def start(self, grammar: Grammar) -> GrammarState:
        """A fresh state at the grammar's beginning; compiled here where it is no longer kept.

        Raises:
            InvalidRequest: it was never prepared, and cannot be compiled.
        """
        compiled = self._cached(grammar)
        if compiled is None:
            compiled = self._compile_and_cache(grammar, _source(grammar), MAX_BYTES)
        return GrammarState(compiled.matcher.deep_copy())

    def close(self) -> None:
        """Ends the process that tries grammars."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._trial.close()

    def _cached(self, grammar: Grammar) -> _Compiled | None:
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
            return compiled

    def _try(self, grammar: Grammar) -> None:
        source = _source(grammar)
        self._compile_and_cache(grammar, source, self._trial.measure(source))

    def _compile_and_cache(self, grammar: Grammar, source: str, nbytes: int) -> _Compiled:
        # Compile outside the lock, because the engine's thread may need another grammar meanwhile.
        compiled = _Compiled(self._compile(source), nbytes)
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > 1 and (
                len(self._compiled) > MAX_COMPILED
                or sum(kept.nbytes for kept in self._compiled.values()) > MAX_COMPILED_BYTES
            ):
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, source: str) -> llguidance.LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = read_tokenizer(self._path, self._vocab_size, self._eos)
        return compile_source(self._tokenizer, source)


def _source(grammar: Grammar) -> str:
    """The grammar in the library's own form. Raises InvalidRequest."""
    try:
        return _written(grammar)
    except ValueError as error:
        raise InvalidRequest(first_line(str(error))) from error


def _written(grammar: Grammar) -> str:
    import llguidance

    matcher = llguidance.LLMatcher
    if grammar.kind is GrammarKind.REGEX:
        check_pattern(grammar.text)
        return matcher.grammar_from_regex(grammar.text)
    if grammar.kind is GrammarKind.LARK:
        check_size(grammar.text)
        return matcher.grammar_from_lark(grammar.text)
    if grammar.kind is GrammarKind.CLIENT:
        # Loaded at the first such grammar: the engine alone needs no JSON library.
        from worker_engine.text.client_grammar import checked_grammar

        return matcher.grammar_from_lark(checked_grammar(grammar.text))
    check_schema(grammar.text)
    text = grammar.text
    if '"$ref"' in text:
        text = json.dumps(without_endless_references(json.loads(text)))
    return matcher.grammar_from_json_schema(
        text,
        overrides={
            "whitespace_flexible": True,
            "whitespace_pattern": WHITESPACE,
            "lenient": not grammar.strict,
            "coerce_one_of": not grammar.strict,
        },
    )


class GrammarState:
    """How far one completion has come in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher
        self._overspent = 0.0
        """Seconds of CPU time beyond TOKEN_SECONDS a token."""

    @property
    def finished(self) -> bool:
        """True once the text is complete and nothing may follow."""
        return self.matcher.is_stopped() and self.matcher.is_accepting()

    def ahead(self, token_id: int) -> GrammarState | None:
        """The state behind `token_id`, this one left as it is; None where that is forbidden or the end."""
        if self.matcher.validate_tokens([token_id]) < 1:
            return None
        matcher = self.matcher.deep_copy()
        return GrammarState(matcher) if matcher.consume_token(token_id) and not matcher.is_stopped() else None

    def accept(self, token_id: int) -> str | None:
        """Advance by one token. Return a sentence for the caller when the grammar cannot be followed."""
        # A state that broke while its mask was computed takes end-of-sequence, though the text is incomplete.
        began = time.thread_time()
        taken = self.matcher.consume_token(token_id)
        self._overspent = max(0.0, self._overspent + time.thread_time() - began - TOKEN_SECONDS)
        if self._overspent > SPARE_SECONDS:
            return "the grammar became too complex to follow: look for rules that match a text in many ways"
        if taken and (self.matcher.is_accepting() or not self.matcher.is_stopped()):
            return None
        problem = self.matcher.get_error().split("\n")[0].strip()
        if not problem or INTERNAL.fullmatch(problem):
            return "no text can follow what the grammar has let through: look for a rule without an end"
        return f"the grammar became too complex to follow: {first_line(problem)}"


class MaskBatch:
    """Applies the grammars of a batch to its logits."""

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = num_threads
        self._executor: llguidance.LLExecutor | None = None
        # Byte -> what its eight bits add to eight logits.
        bits = (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1
        self._table = torch.zeros(256, 8).masked_fill_(bits == 0, float("-inf"))

    def apply(self, logits: torch.Tensor, rows: Items[tuple[int, GrammarState]]) -> None:
        """Puts -inf in float32 [rows, vocab] wherever a row's grammar forbids the token."""
        if not rows:
            return
        if self._executor is None:
            import llguidance

            self._executor = llguidance.LLExecutor(self._num_threads)
        vocab = logits.shape[1]
        masks = np.zeros((len(rows), 4 * ((vocab + 31) // 32)), dtype=np.uint8)
        self._executor.unsafe_compute_mask_ptr(
            [(state.matcher, index) for index, (_, state) in enumerate(rows)],
            masks.ctypes.data,
            masks.shape[1],
            len(rows),
        )
        self._table = to_device(self._table, logits.device)
        index = to_device(masks, logits.device).int()
        bias = torch.nn.functional.embedding(index, self._table).view(len(rows), -1)[:, :vocab]
        if len(rows) == len(logits):
            logits += bias
        else:
            where = to_device(np.array([row for row, _ in rows]), logits.device)
            logits.index_add_(0, where, bias)
