"""References that lead only to themselves, and what else a grammar cannot follow to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker_engine.conftest import EngineFactory, drain, request
from tests.worker_engine.text.test_structured_output import compiler_id, schema
from worker_engine.errors import InvalidRequest
from worker_engine.openai.prepare import _checked_functions
from worker_engine.protocol import FinishReason, Grammar, GrammarKind
from worker_engine.text.structured_output import GrammarCompiler
from worker_engine.text.tool_calls.base import Function, lark
from worker_engine.text.tool_calls.forms import LLAMA


@pytest.fixture
def compiler(tiny_model: Path) -> GrammarCompiler:
    return GrammarCompiler(tiny_model, 256, (255,))


def loop(*required: str) -> dict[str, Any]:
    """An object whose property x is a reference that leads to itself; y is an integer."""
    return {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": list(required),
        "additionalProperties": False,
    }


ENDLESS: dict[str, Any] = {
    "required property": loop("x"),
    "array without an end": {
        "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}},
        "$ref": "#/$defs/n",
    },
    "object within itself": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
    "both branches": {
        "type": "object",
        "properties": {"x": {"anyOf": [{"$ref": "#/properties/x"}, {"allOf": [{"$ref": "#/properties/x"}]}]}},
        "required": ["x"],
    },
    "first of a tuple": {"type": "array", "prefixItems": [{"$ref": "#/prefixItems/0"}], "minItems": 1},
    "escaped pointer": {
        "$defs": {"a/b c": {"$ref": "#/$defs/a~1b%20c"}},
        "type": "array",
        "items": {"$ref": "#/$defs/a~1b%20c"},
        "minItems": 2,
    },
}


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize("strict", [True, False])
def test_a_loop_below_the_top_that_no_text_matches_is_refused(
    compiler: GrammarCompiler, case: str, strict: bool
) -> None:
    with pytest.raises(InvalidRequest, match="it can match no text"):
        compiler.start(schema(ENDLESS[case], strict=strict))
    with pytest.raises(InvalidRequest, match="parameters of f: it can match no text"):
        _checked_functions((Function("f", ENDLESS[case]),))


@pytest.mark.parametrize("seed", range(4))
def test_a_loop_that_need_not_be_followed_is_left_out(
    tiny_model: Path, make_engine: EngineFactory, seed: int
) -> None:
    """The optional property never comes, and neither does a branch that cannot end."""
    optional, tree = loop("y"), loop("x")
    tree["$defs"]["b"] = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    engine = make_engine(tiny_model)
    for name, value in (("optional", optional), ("tree", tree)):
        asked = request(name, [1, 2], 200, temperature=1.5, seed=seed, grammar=schema(value))
        engine.add_request(asked, None)
    results = drain(engine)
    for name, required in (("optional", {"y"}), ("tree", {"x"})):
        assert results[name][-1].finish_reason is FinishReason.STOP
        assert json.loads("".join(delta.text for delta in results[name])).keys() >= required
    assert "x" not in json.loads("".join(delta.text for delta in results["optional"]))


def test_a_grammar_that_stops_without_a_complete_text_is_no_good_answer(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    """The library offers end-of-sequence behind x, where it finds no way on."""
    engine = make_engine(tiny_model)
    compact = {**loop("x"), "x-guidance": {"whitespace_flexible": False}}
    grammar = Grammar(GrammarKind.LARK, f"start: json\njson: %json {json.dumps(compact)}")
    for name, deaf in (("deaf", True), ("hears", False)):
        engine.add_request(request(name, [1], 99, grammar=grammar, ignore_eos=deaf), None)
    for deltas in drain(engine).values():
        assert deltas[-1].finish_reason is FinishReason.REFUSED
        assert "no text can follow" in str(deltas[-1].error)


def test_white_space_between_tokens_of_json_is_bounded(compiler: GrammarCompiler) -> None:
    for kind, text in (
        (GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        (GrammarKind.LARK, lark(LLAMA, [Function("f", {})], parallel=True, added_token_id=lambda _: None)),
    ):
        state = compiler.start(Grammar(kind, text))
        assert [state.accept(compiler_id(byte)) is None for byte in b"{" + b" " * 9] == [True] * 9 + [False]
