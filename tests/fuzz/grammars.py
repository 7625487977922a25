"""Regular expressions and grammars through the worker's admission, its trial, compilation and masks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson
import re2
import torch

from tests.fuzz.drawing import spliced
from tests.fuzz.target import Target, demand
from tests.worker_engine.tiny_model import byte_tokenizer
from worker_engine.errors import InvalidRequest
from worker_engine.openai.body import parse_object
from worker_engine.openai.constraints import parse_constraint
from worker_engine.openai.fields import Fields
from worker_engine.protocol import Grammar
from worker_engine.text.structured_output import GrammarCompiler, MaskBatch

_VOCAB: Final = 257
_EOS: Final = 256
_STEPS: Final = 40
_STEP_SECONDS: Final = 0.5
"""CPU time of one token at most: in a worker its batch waits for it."""
_QUIET: Final = re2.Options()
_QUIET.log_errors = False
_ATOMS: Final = (
    "a",
    "b",
    "xyz",
    "0",
    " ",
    "é",
    "模",
    r"\d",
    r"\w",
    r"\s",
    r"\D",
    r"\.",
    r"\n",
    ".",
    "[a-c]",
    "[^x]",
    "[0-9a-f]",
    r"[\d-]",
    "[]a]",
    "[a-zé-ü]",
    r"\\",
    r"\x41",
    r"\{",
    "-",
)
_COUNTS: Final = ("?", "*", "+", "{2}", "{0,3}", "{1,}", "{17}", "{3,40}", "{100}", "{400}")
_REGEX_PIECES: Final = (
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "|",
    "*",
    "+",
    "?",
    "^",
    "$",
    "\\",
    "(?i)",
    "(?=",
    "(?!a)",
    "(?P<a>",
    "(?:",
    "(?x)",
    "{9999}",
    "{ 99 , }",
    "{99999999999}",
    r"\b",
    r"\p{L}",
    r"\p{",
    r"\u{110000}",
    r"\1",
    "&&",
    "[[:alpha:]]",
    "~",
    "&",
    "-",
    "\0",
    "\n",
    "a{100}",
    "(a|b)*a(a|b){12}",
    ".*",
    "\U0010ffff",
    r"\Q",
    r"\d{0}",
    "(a?){90}a{90}",
)
_GRAMMAR_PIECES: Final = (
    *_REGEX_PIECES,
    "start",
    "root",
    ":",
    "::=",
    "\n",
    "/",
    '"',
    "'",
    "//",
    "#",
    "%ignore /x/",
    "%import common.INT",
    "%json",
    '%json {"type": "integer"}',
    '%json {"$ref": "#"}',
    "%regex",
    "%llguidance {}",
    "~3",
    "~2..5",
    "[lazy]",
    "[max_tokens=3]",
    "[capture]",
    "<[7]>",
    "<[^7]>",
    "<|x|>",
    "->",
    "!",
    ".2",
    "A",
    "b",
    "_",
    "{0}",
    "1000",
    "..",
    '"a".."z"',
    "@x",
    "%declare X",
    "%override",
    "[temperature=0.5]",
    "[stop=/x/]",
    '[suffix="x"]',
)


def regex(draw: Random, depth: int = 3) -> str:
    """Return a well-formed regular expression whose meaning RE2 shares."""
    parts = []
    for _ in range(draw.randrange(1, 4)):
        inner = draw.choice(_ATOMS)
        if depth and draw.random() < 0.4:
            inner = f"({'|'.join(regex(draw, depth - 1) for _ in range(draw.randrange(1, 3)))})"
        elif len(inner.strip("\\")) > 1 and inner[0] != "[":
            inner = f"({inner})"
        parts.append(inner + (draw.choice(_COUNTS) if draw.random() < 0.4 else ""))
    return "".join(parts)


def lark(draw: Random) -> str:
    """Return a grammar in Lark's notation; its rules may refer to themselves."""
    rules, terminals = ["start", "a", "b", "c"], ["A", "B"]

    def item() -> str:
        kind = draw.randrange(8)
        if kind < 2:
            return orjson.dumps(draw.choice(("x", "yy", "é", '"', "\\", " "))).decode()
        if kind == 2:
            return f"/{_slashed(regex(draw, 1))}/"
        if kind == 3:
            return f"({' | '.join(item() for _ in range(draw.randrange(1, 3)))})"
        return draw.choice(rules + terminals)

    def body(*, terminal: bool) -> str:
        if terminal:
            return f"/{_slashed(regex(draw, 2))}/"
        counted = (item() + draw.choice(("", "", "?", "*", "+", "{2}", "{1,30}", "~2..4")) for _ in range(6))
        return " | ".join(" ".join(next(counted) for _ in range(draw.randrange(1, 3))) for _ in range(2))

    lines = [f"{name}: {body(terminal=name.isupper())}" for name in (*rules, *terminals)]
    return "\n".join(lines)


def gbnf(draw: Random) -> str:
    """Return a grammar in GBNF."""
    names = ("root", "one", "two-x")
    items = (
        *names,
        '"x"',
        '"\\n"',
        "[a-z]",
        "[^0-9]",
        '"é"',
        '("a" | one)',
        "two-x{2}",
        "[0-9]{1,9}",
        "one?",
        '"y"*',
    )
    return "\n".join(
        f"{name} ::= {' | '.join(' '.join(draw.choices(items, k=draw.randrange(1, 4))) for _ in range(2))}"
        for name in names
    )


def _slashed(pattern: str) -> str:
    return pattern.replace("/", r"\/").replace("\n", r"\n")


class GrammarCases:
    """Runs cases on one compiler, as a worker does for its requests."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._loop = asyncio.Runner()
        self._masks = MaskBatch(1)
        self._tokenizer = byte_tokenizer()

    def run(self, draw: Random) -> str:
        kind, text, pure = _drawn(draw)
        outcome, written = self.write(draw, {"structured_outputs": {kind: text}})
        if outcome == "complete" and pure:
            assert _matches(text, written), (text, written)
        return outcome

    def write(self, draw: Random, body: dict[str, Any]) -> tuple[str, str]:
        """Write a random text under a request's constraint; return the outcome and the text."""
        try:
            constraint = parse_constraint(Fields(parse_object(orjson.dumps(body))))
            assert constraint is not None
            return self.follow(draw, constraint.grammar, constraint.param)
        except InvalidRequest as refusal:
            demand(0 < len(str(refusal)) < 1000, refusal)
            return "refused", ""

    def follow(self, draw: Random, grammar: Grammar, param: str) -> tuple[str, str]:
        """Draw tokens that the grammar allows. Raises InvalidRequest."""
        self._loop.run(self._compiler.prepare(grammar, param, "acme"))
        state, ids = self._compiler.start(grammar), list[int]()
        began = time.process_time()
        while not state.finished:
            assert (spent := time.process_time() - began) < _STEP_SECONDS, (
                f"a step took {spent} s of CPU time"
            )
            began = time.process_time()
            logits = torch.zeros(1, _VOCAB)
            self._masks.apply(logits, [(0, state)])
            allowed = torch.isfinite(logits[0]).nonzero().flatten().tolist()
            assert allowed, "no token may follow, and the text is not complete"
            # Past the usual length the end is taken as soon as it may come.
            ends = _EOS in allowed and (len(ids) >= _STEPS or draw.random() < 0.2)
            token = _EOS if ends else self._token(draw, allowed, len(ids))
            if state.accept(token) is not None:
                return "ended with an error", ""
            if token == _EOS:
                break
            ids.append(token)
            if len(ids) > 8 * _STEPS:
                return "cut at max_tokens", ""
        return "complete", self._tokenizer.decode(ids)

    def _token(self, draw: Random, allowed: list[int], length: int) -> int:
        others = [token for token in allowed if token != _EOS] or allowed
        if length < _STEPS:
            return int(draw.choice(others))
        # Closing brackets and quotes first, so that texts come to an end.
        closing = [token for token in others if (self._tokenizer.id_to_token(token) or "x") in '"]}']
        return int(draw.choice(closing or others))

    def close(self) -> None:
        self._loop.close()
        self._compiler.close()

    def pids(self) -> list[int]:
        """This process, and the one that tries grammars first."""
        trial = self._compiler._trial._process
        return [os.getpid(), *([] if trial is None else [trial.pid])]


def _drawn(draw: Random) -> tuple[str, Any, bool]:
    """Return a constraint's kind, its text, and whether RE2 must agree on what matches it."""
    kind = draw.choice(("regex", "regex", "lark", "gbnf", "choice"))
    if kind == "choice":
        choices = ["".join(draw.choices(_ATOMS + _REGEX_PIECES, k=2)) for _ in range(draw.randrange(1, 5))]
        return "choice", choices, True
    text = {"regex": regex, "lark": lark, "gbnf": gbnf}[kind](draw)
    pieces = _REGEX_PIECES if kind == "regex" else _GRAMMAR_PIECES
    pure = kind == "regex" and draw.random() < 0.5
    text = text if pure else spliced(draw, text, pieces, 4)
    return ("regex" if kind == "regex" else "grammar"), text, pure


def _matches(wanted: Any, written: str) -> bool:
    if isinstance(wanted, list):
        return written in wanted
    try:
        # RE2's white space lacks the vertical tab, which Python's and ours have.
        return re2.compile(wanted.replace(r"\s", r"[\s\v]"), _QUIET).fullmatch(written) is not None
    except re2.error:
        return True  # more repetitions than RE2 takes


@contextmanager
def open_cases(folder: Path) -> Iterator[GrammarCases]:
    """Opens the compiler of a worker whose vocabulary is the 256 bytes and an end of text."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    cases = GrammarCases(GrammarCompiler(folder, _VOCAB, (_EOS,)))
    try:
        yield cases
    finally:
        cases.close()


@contextmanager
def open_target(folder: Path) -> Iterator[Target]:
    """Opens the target of regular expressions and grammars."""
    with open_cases(folder) as cases:
        yield Target(cases.run, cases.pids)
