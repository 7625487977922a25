"""Completions held to a grammar: compiled off the event loop, kept, turned into masks over the vocabulary.

The grammar library is llguidance; docs/adr/0006-structured-output.md says why. A grammar that cannot be
compiled within the limits is refused by name; one that grows too complex later ends its own request only.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from kernels.transfer import to_device
from worker_engine.errors import InvalidRequest
from worker_engine.grammar_limits import check_pattern, check_schema, check_size
from worker_engine.protocol import Grammar, GrammarKind
from worker_engine.schema_loops import without_endless_references
from worker_engine.tool_calls.base import WHITESPACE

if TYPE_CHECKING:
    # Loaded at the first grammar: the engine runs without it where no request asks for one.
    import llguidance

MAX_COMPILED: Final = 64
"""Grammars kept; one that is asked for again costs a copy of 10 us instead of milliseconds."""
MAX_COMPILED_TEXT: Final = 2 << 20
"""Characters of all grammars kept. The worst that was tried held 200 bytes of memory for each."""
_INTERNAL: Final = re.compile("(?:[A-Z][a-z]+)+")
"""How the library reports a grammar that no token can continue: the name of a state of its own."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Thread-safe."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Items[int]) -> None:
        """The tokenizer is read at the first use: 0.2-0.5 s for 49,152 tokens."""
        self._path, self._vocab_size, self._eos = folder / "tokenizer.json", vocab_size, list(eos_token_ids)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        # One thread: a flood of large grammars takes one core, and never the tokenizer's threads.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def prepare(self, grammar: Grammar, param: str) -> None:
        """Compiles `grammar` in a thread, unless it is kept already.

        Raises:
            InvalidRequest: naming `param`; it is malformed, not supported or too complex.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self.start, grammar)
        except InvalidRequest as error:
            raise InvalidRequest(f"{param}: {error}", param=param) from error

    def start(self, grammar: Grammar) -> GrammarState:
        """A fresh state at the grammar's beginning. Raises InvalidRequest."""
        with self._lock:
            matcher = self._compiled.get(grammar)
        if matcher is None:
            # Not under the lock: the engine's thread may want another grammar meanwhile.
            matcher = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = matcher
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > MAX_COMPILED or self._kept_text > MAX_COMPILED_TEXT:
                self._compiled.popitem(last=False)
            return GrammarState(matcher.deep_copy())

    @property
    def _kept_text(self) -> int:
        return sum(len(grammar.text) for grammar in self._compiled)

    def _compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        import llguidance

        try:
            if self._tokenizer is None:
                text = self._path.read_text(encoding="utf-8")
                self._tokenizer = llguidance.LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos)
            matcher = llguidance.LLMatcher(self._tokenizer, _source(grammar), log_level=0, limits=_limits())
        except ValueError as error:
            raise InvalidRequest(_first_line(str(error))) from error
        # The first mask is where most of what is too complex shows; its work is kept for every copy.
        matcher.compute_bitmask()
        if matcher.is_error():
            raise InvalidRequest(_first_line(matcher.get_error()))
        return matcher


@cache
def _limits() -> llguidance.LLParserLimits:
    """Fuel, not time, so that the same grammar is always judged alike: about 10 ms of lexing a token."""
    import llguidance

    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
        verbose_errors=False,
    )


def _source(grammar: Grammar) -> str:
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
        from worker_engine.client_grammar import checked_grammar

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


def _first_line(text: str) -> str:
    line = " ".join(text.split("<state>")[0].removesuffix("<non-verbose/>").split())
    if _INTERNAL.fullmatch(line):
        return "it can match no text: look for a rule that leads to itself and nothing else"
    return line if len(line) <= 300 else line[:297] + "..."


class GrammarState:
    """How far one completion has come in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher

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
        taken = self.matcher.consume_token(token_id)
        if taken and (self.matcher.is_accepting() or not self.matcher.is_stopped()):
            return None
        problem = self.matcher.get_error().split("\n")[0].strip()
        if not problem or _INTERNAL.fullmatch(problem):
            return "no text can follow what the grammar has let through: look for a rule without an end"
        return f"the grammar became too complex to follow: {_first_line(problem)}"


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
