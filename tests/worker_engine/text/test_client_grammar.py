"""Clients' own grammars: Lark and GBNF are followed; bombs and what would loosen our rules are refused."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.worker_engine.conftest import EngineFactory, drain, request
from tests.worker_engine.test_generation_api import chat, worker
from tests.worker_process import Worker
from worker_engine.errors import InvalidRequest
from worker_engine.protocol import FinishReason, Grammar, GrammarKind
from worker_engine.text.client_grammar import checked_grammar
from worker_engine.text.structured_output import GrammarCompiler

__all__ = ["worker"]
LARK = """
start: greeting{2,3} // a comment with "quotes /and slashes
greeting: "hi" | WORD "!"
WORD: /[a-c]{2,3}/
"""
GBNF = """
root ::= item{2} "."
item ::= "ab" | [0-9]
"""
HELD = {
    "lark": (LARK, r"(hi|[a-c]{2,3}!){2,3}"),
    "gbnf": (GBNF, r"(ab|[0-9]){2}\."),
    "ascii classes": (r"start: /\d{20}/", r"[0-9]{20}"),
    "json": (
        'start: "x=" %json {"type": "object", "properties": {"a": {"type": "null"}}, '
        '"required": ["a"], "additionalProperties": false, '
        '"x-guidance": {"whitespace_pattern": " {99}"}}',
        r'x=\{\s{0,8}"a"\s{0,8}:\s{0,8}null\s{0,8}\}',
    ),
    "attributes": ('%llguidance {}\nstart: a b\na[lazy]: /[xy]*z/\nb: "!" "?"', r"[xy]*z!\?"),
    "recursive": ('start: tree\ntree: "(" tree ")" | "."', r"\(*\.\)*"),
}


@pytest.mark.parametrize("case", HELD)
def test_a_random_model_is_held_to_a_clients_grammar(
    tiny_model: Path, make_engine: EngineFactory, case: str
) -> None:
    text, wanted = HELD[case]
    engine = make_engine(tiny_model)
    for seed in range(3):
        grammar = Grammar(GrammarKind.CLIENT, text)
        asked = request(str(seed), [1, 2], 300, temperature=1.5, seed=seed, grammar=grammar, ignore_eos=False)
        engine.add_request(asked, None)
    for deltas in drain(engine).values():
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert re.fullmatch(wanted, "".join(delta.text for delta in deltas))


REFUSED = {
    "counts in a regular expression": "start: /(a{1000}){1000}/",
    "counts along references": 'start: A{101}\nA: B{100}\nB: "x" | "y"',
    "counts along rules": "start: a{101}\na: b~100\nb: /x{1,2}/",
    "counts over a regular expression": "start: A{101}\nA: /x{100}/",
    "counts in one definition": 'start: ("x"{1000}){1000}',
    "counts below a colon of its own": 'start: a{1000}\na\n: "x"{1000}',
    "counts behind an optional group": 'start: (\nb ["y"]{1000}){1000}\nb: "x"',
    "a long count": 'start: "x"{99999999999999999999}',
    "verbose": "start: /(a{ 9999 }){ 9999 }/x",
    "flags": "start: /(?x)a/",
    "options": '%llguidance {"no_forcing": true}\nstart: "a"',
    "regex directive": 'start: %regex {"substring_chars": "abc"}',
    "schema": 'start: %json {"type": "integer", "multipleOf": 99999989}',
    "schema that nothing matches": 'start: %json {"$ref": "#"}',
    "no schema": "start: %json {",
    "deep schema": "start: %json " + '{"items":' * 900 + "{}" + "}" * 900,
    "undefined": 'start: "a" b',
    "no start": "x",
    "terminals that double": "start: A30\nA0: /[ab]*c/\n"
    + "\n".join(f"A{i + 1}: A{i} A{i}" for i in range(30)),
    "nested GBNF": "root ::= " + "(" * 5000,
    "too long": 'start: "' + "x" * 300_000 + '"',
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tiny_model: Path) -> None:
    compiler = GrammarCompiler(tiny_model, 256, (255,))
    began = time.process_time()
    with pytest.raises(InvalidRequest) as refused:
        compiler.start(Grammar(GrammarKind.CLIENT, REFUSED[case]))
    # CPU time, so that a busy machine does not fail it.
    assert time.process_time() - began < 3
    assert len(str(refused.value)) < 600


def test_counts_of_rules_that_do_not_nest_are_not_multiplied() -> None:
    checked_grammar(
        "start: " + " ".join(f"A{i}" for i in range(20)) + "".join(f"\nA{i}: /a{{50}}/" for i in range(20))
    )
    checked_grammar('start: a{99}\na: "x" a | b{99}\nb: "y"')
    checked_grammar("start: A\nA: /x{50000}/")


def test_counts_are_multiplied_whatever_the_names_of_rules() -> None:
    """A rule that refers to itself was weighed without its other rules, as a set of names had its order."""
    for number in range(30):
        with pytest.raises(InvalidRequest, match="within one another"):
            checked_grammar(f'start: a{number}{{101}} | start "x"\na{number}: "y"{{100}}')


@pytest.mark.parametrize("name", ["structured_outputs", "guided_grammar"])
def test_it_is_served(worker: Worker, name: str) -> None:
    text = 'start: "yes" | "no"'
    body = {name: {"grammar": text} if name == "structured_outputs" else text}
    choice = chat(worker, **body)["choices"][0]
    assert choice["message"]["content"] in ("yes", "no")
    assert choice["finish_reason"] == "stop"
