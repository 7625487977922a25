"""Grammars: what a random model writes under one is valid; bombs are refused fast; neighbours left alone."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from worker_engine.errors import InvalidRequest
from worker_engine.openai.prepare import _checked_functions
from worker_engine.protocol import FinishReason, Grammar, GrammarKind
from worker_engine.text import structured_output
from worker_engine.text.grammar_limits import MAX_NAMES, MAX_REPETITIONS, check_pattern
from worker_engine.text.grammar_trial import MAX_BYTES
from worker_engine.text.structured_output import GrammarCompiler, MaskBatch
from worker_engine.text.tool_calls.base import Function

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "é"]}, "maxItems": 3},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
    },
    "required": ["name", "age", "tags", "zip"],
    "additionalProperties": False,
}


def schema(value: Any, *, strict: bool = True) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value), strict)


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


@pytest.fixture
def compiler(tiny_model: Path) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(tiny_model, 256, (255,))
    yield compiler
    compiler.close()


def test_what_a_random_model_writes_is_valid(tiny_model: Path, make_engine: EngineFactory) -> None:
    """Eight streams of random weights, four under a schema, two under a regular expression, two free."""
    engine = make_engine(tiny_model)
    grammars = [*[schema(PERSON)] * 4, *[regex("(yes|no|maybe), [a-f]{2,4}!")] * 2, None, None]
    for index, grammar in enumerate(grammars):
        asked = request(str(index), [1, 2, 3], 300, temperature=1.5, seed=index, grammar=grammar)
        engine.add_request(asked, None)
    results = drain(engine)
    for index, grammar in enumerate(grammars):
        deltas = results[str(index)]
        text = "".join(delta.text for delta in deltas)
        if grammar is None:
            assert deltas[-1].finish_reason is FinishReason.LENGTH
            continue
        assert deltas[-1].finish_reason is FinishReason.STOP
        if grammar.kind is GrammarKind.REGEX:
            assert re.fullmatch(grammar.text, text)
        else:
            jsonschema.validate(json.loads(text), PERSON)


def test_neighbours_under_a_grammar_change_nothing(tiny_model: Path, make_engine: EngineFactory) -> None:
    free: dict[str, Any] = {"temperature": 1.0, "seed": 4}
    engine = make_engine(tiny_model)
    engine.add_request(request("free", [7, 8], 40, **free), None)
    alone = tokens(drain(engine)["free"])
    engine.add_request(request("free", [7, 8], 40, **free), None)
    engine.add_request(request("held", [7, 8], 40, grammar=schema(PERSON)), None)
    assert tokens(drain(engine)["free"]) == alone


def test_max_tokens_cuts_with_length(tiny_model: Path, make_engine: EngineFactory) -> None:
    engine = make_engine(tiny_model)
    engine.add_request(request("cut", [1], 6, grammar=schema(PERSON)), None)
    deltas = drain(engine)["cut"]
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert len(tokens(deltas)) == 6


def test_preemption_keeps_the_grammars_place(tiny_model: Path, make_engine: EngineFactory) -> None:
    engine = make_engine(tiny_model)
    for index in range(4):
        asked = request(str(index), [1] * 40, 120, temperature=1.2, seed=index, grammar=regex("(ab|cd){60}"))
        engine.add_request(asked, None)
    for _ in range(30):
        engine.step()
    victim = list(engine._sequences.values())[-1]
    engine.scheduler._preempt(victim, engine._clock())
    for deltas in drain(engine).values():
        assert deltas[-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    text = engine._tokenizer.decode(victim.token_ids[40:])
    assert re.fullmatch("(ab|cd){60}", text)


def test_a_grammar_that_grows_too_complex_ends_its_own_request(
    tiny_model: Path, make_engine: EngineFactory
) -> None:
    """This one compiles, and bursts the lexer's limits at its second token."""
    engine = make_engine(tiny_model)
    engine.add_request(request("bursts", [1], 20, grammar=regex("(a?){500}a{500}")), None)
    engine.add_request(request("free", [1], 20), None)
    deltas = drain(engine)
    assert deltas["bursts"][-1].finish_reason is FinishReason.REFUSED
    assert "too complex" in str(deltas["bursts"][-1].error)
    assert len(tokens(deltas["free"])) == 20


def nested(kind: str, depth: int) -> Any:
    node: Any = {"type": "string"}
    for _ in range(depth):
        node = {"type": "array", "items": node} if kind == "array" else {"properties": {"a": node}}
    return node


def any_of(depth: int) -> Any:
    if depth == 0:
        return {"type": "string"}
    inner = any_of(depth - 1)
    return {"anyOf": [inner, {"type": "object", "properties": {"x": inner}, "required": ["x"]}]}


def exponential(depth: int) -> Any:
    """Each definition refers twice to the next: 2**depth objects when written out."""
    nodes = [{"properties": {key: {"$ref": f"#/$defs/d{i + 1}"} for key in "ab"}} for i in range(depth)]
    named = {f"d{i}": node for i, node in enumerate([*nodes, {"type": "null"}])}
    return {"$ref": "#/$defs/d0", "$defs": named}


BOMBS: dict[str, Grammar] = {
    "deep objects": schema(nested("object", 200)),
    "deep arrays": schema(nested("array", 200)),
    "huge enum": schema({"enum": [f"value-{i * 7919 % 100_003}" for i in range(100_000)]}),
    "reference cycle": schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "remote reference": schema({"$ref": "https://example.org/s.json"}),
    "file reference": schema({"$ref": "file:///etc/hostname"}),
    "multipleOf": schema({"type": "integer", "multipleOf": 99_999_989}),
    "many multiples": schema({"allOf": [{"type": "integer", "multipleOf": n} for n in (97, 89, 83, 79)]}),
    "fine multiple": schema({"type": "number", "multipleOf": 1e-9}),
    "wide allOf": schema({"allOf": [{"properties": {f"p{i}": {"type": "string"}}} for i in range(2000)]}),
    "nested counts": regex("((a{1000}){1000}){1000}"),
    "nested counts in a schema": schema({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}),
    "look-ahead": regex("(?=a)b"),
    "unclosed": regex("(a"),
    "integer that a float rounds": schema({"enum": ["a", {"b": [2**64 - 1]}]}),
    "no type": schema({"type": "strong"}),
    "not": schema({"not": {"type": "string"}}),
    "unique items": schema({"type": "array", "uniqueItems": True}),
    "names required": schema({"type": "object", "required": [f"name{i}" for i in range(10_000)]}),
    "names listed": schema({"properties": {f"p{i}": {"type": "null"} for i in range(10_000)}}),
    "names in many objects": schema(
        {"anyOf": [{"type": "object", "required": [f"{i}_{j}" for i in range(500)]} for j in range(20)]}
    ),
    "huge text": schema({"description": "x" * 300_000}),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_in_bounded_time(case: str, compiler: GrammarCompiler) -> None:
    asyncio.run(compiler.prepare(regex("warm"), "x"))
    began = time.process_time()
    with pytest.raises(InvalidRequest) as refused:
        asyncio.run(compiler.prepare(BOMBS[case], "response_format"))
    # CPU time, so that a busy machine does not fail it; the slowest takes 0.4 s.
    assert time.process_time() - began < 3
    assert refused.value.param == "response_format"
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "endless",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"oneOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_schema_that_only_refers_to_itself_is_told_so(compiler: GrammarCompiler, endless: Any) -> None:
    with pytest.raises(InvalidRequest, match="it can match no text: look for a reference") as refused:
        compiler.start(schema(endless))
    assert "Bias" not in str(refused.value)


def test_functions_together_have_no_more_names_than_one_schema() -> None:
    def function(number: int) -> Function:
        return Function(f"f{number}", {"required": [f"{number}_{i}" for i in range(100)]})

    functions = tuple(function(number) for number in range(MAX_NAMES // 100 + 1))
    _checked_functions(functions[:-1])
    with pytest.raises(InvalidRequest, match=f"{MAX_NAMES + 100} names together") as refused:
        _checked_functions(functions)
    assert refused.value.param == "tools"


HARD: dict[str, Grammar] = {
    "as many names as are served": schema(
        {"type": "object", "required": [f"p{i}" for i in range(MAX_NAMES)]}
    ),
    "10,000 values": schema({"enum": [f"value-{i}" for i in range(10_000)]}),
    "1,024 alternatives": schema(any_of(9)),
    "exponential references": schema(exponential(24)),
    "recursion": schema(
        {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    ),
    "catastrophic for backtracking": regex("(a+)+b|(x+x+)+y"),
    "exponential when determined": regex("(a|b)*a(a|b){22}c"),
    "long": regex("[a-z]{1,50000}"),
    "many words": regex("|".join(f"w{i}.*x{i}" for i in range(3000))),
    "huge length": schema({"type": "string", "maxLength": 10**9}),
    "300 optional properties": schema({"properties": {f"p{i}": {"type": "null"} for i in range(300)}}),
}


@pytest.mark.parametrize("case", HARD)
def test_a_hard_grammar_is_served_in_bounded_time(case: str, compiler: GrammarCompiler) -> None:
    """Compiling, and 100 random steps: none may hold up the batch."""
    began = time.process_time()
    state = compiler.start(HARD[case])
    assert time.process_time() - began < 3
    masks, draw = MaskBatch(1), random.Random(1)
    for _ in range(100):
        logits = torch.zeros(1, 256)
        began = time.process_time()
        masks.apply(logits, [(0, state)])
        allowed = torch.isfinite(logits[0]).nonzero().flatten().tolist()
        token = draw.choice(allowed)
        assert state.accept(token) is None
        assert time.process_time() - began < 0.5
        if state.finished:
            break


def test_an_ambiguous_grammar_ends_its_own_request(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a token grows with the square of the text, and the whole batch would wait for it."""
    monkeypatch.setattr(structured_output, "SPARE_SECONDS", 0.01)
    state = compiler.start(Grammar(GrammarKind.CLIENT, 'start: start start | "a"'))
    problem = next(filter(None, (state.accept(compiler_id(ord("a"))) for _ in range(1000))))
    assert "match a text in many ways" in problem
    plain = compiler.start(Grammar(GrammarKind.CLIENT, 'start: "a" start | "a"'))
    assert not any(plain.accept(compiler_id(ord("a"))) for _ in range(400))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ['start: "x" | /0+/ /0+/', 'start: "x" | "0" b\nb: "0" b'])
def test_a_grammar_without_an_end_costs_no_more_than_others(compiler: GrammarCompiler, text: str) -> None:
    """All bytes that must follow, computed ahead, would be endlessly many."""
    state, masks = compiler.start(Grammar(GrammarKind.CLIENT, text)), MaskBatch(1)
    for _ in range(50):
        logits = torch.zeros(1, 256)
        masks.apply(logits, [(0, state)])
        assert state.accept(compiler_id(ord("0"))) is None


def test_a_lenient_schema_leaves_out_what_cannot_be_enforced(compiler: GrammarCompiler) -> None:
    unique = {"type": "array", "items": {"type": "null"}, "uniqueItems": True}
    compiler.start(schema(unique, strict=False))
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        compiler.start(schema(unique))


def test_a_user_cannot_change_the_compilers_options(compiler: GrammarCompiler) -> None:
    """The library reads `x-guidance` from schemas; ours must win, or white space would be unbounded."""
    state = compiler.start(schema({"type": "object", "x-guidance": {"whitespace_pattern": "[ ]+"}}))
    ids = [compiler_id(byte) for byte in b"{" + b" " * 70]
    accepted = [state.accept(token) is None for token in ids]
    assert not all(accepted)


def compiler_id(byte: int) -> int:
    from tests.worker_engine.tiny_model import byte_tokenizer

    return int(byte_tokenizer().encode(chr(byte), add_special_tokens=False).ids[0])


def test_compiled_grammars_are_kept_and_bounded(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured_output, "MAX_COMPILED", 3)
    tried: list[str] = []
    original = compiler._try

    def counting(grammar: Grammar) -> None:
        tried.append(grammar.text)
        original(grammar)

    monkeypatch.setattr(compiler, "_try", counting)

    async def prepare(*texts: str) -> None:
        for text in texts:
            await compiler.prepare(regex(text), "x")

    asyncio.run(prepare("a", "b", "a", "c", "a", "d", "a", "b"))
    assert tried == ["a", "b", "c", "d", "b"]
    assert [grammar.text for grammar in compiler._compiled] == ["d", "a", "b"]
    assert all(compiled.nbytes < MAX_BYTES for compiled in compiler._compiled.values()), "measured"
    monkeypatch.setattr(structured_output, "MAX_COMPILED_BYTES", 1)
    asyncio.run(prepare("x{1,9}"))
    assert [grammar.text for grammar in compiler._compiled] == ["x{1,9}"]
    # A grammar that was evicted between preparation and use is compiled again.
    assert compiler.start(regex("a")).matcher.compute_bitmask()


def test_states_of_one_grammar_are_independent(compiler: GrammarCompiler) -> None:
    first, second = compiler.start(regex("ab")), compiler.start(regex("ab"))
    assert first.accept(compiler_id(ord("a"))) is None
    assert first.accept(compiler_id(ord("b"))) is None
    assert first.finished
    assert not second.finished
    assert second.accept(compiler_id(ord("b"))) is not None


@pytest.mark.parametrize(
    ("pattern", "good"),
    [
        (r"\d{1,3}(\.\d{1,3}){3}", True),
        (r"[{}]{5}\{9999999\}", True),
        (f"x{{{MAX_REPETITIONS}}}", True),
        (r"[a{9999}]{9}", True),
        (r"(a{400}|b{400}){400}", False),
        (f"x{{0,{MAX_REPETITIONS + 1}}}", False),
        (r"((a{50}){50}){50}", False),
        (r"(a{400})(b{400})", True),
        (r"(\({400}){400}", False),
        ("(((", True),
        (r"(a{400}x)*{400}", False),
        (r"([[0-9])]a{400}){400}", False),
        (r"([^])]a{400}){400}", False),
        (r"[[a{9999}]{9999}]{9}", True),
        (r"(\])[\])]{400}", True),
        (r"((a{ 9999 }){ 9999 })", False),
        (r"(a{ 101 , }){ 0, 100 }", False),
        (r"(b{316}){316}", False),
        (r"(?:a{400}){400}", False),
        (r"a{00000000000000000012}", True),
        (r"a{999999999999}", False),
        (r"a{000000000009999999}", False),
        (r"a{400}?{400}", False),
        (r"a{9}+b{9999}", True),
        ("(a{9}\u2003){ 9\u2003}", True),
        (r"(?P<year>\d{4})(?<day>\d{2})", True),
    ],
)
def test_nested_counts_are_multiplied(pattern: str, good: bool) -> None:
    if good:
        check_pattern(pattern)
    else:
        with pytest.raises(InvalidRequest, match="repeats"):
            check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(?x)((a{ 9999 }){ 9999 })", "(?i)a", "(?i:a)", "(?-u:a)", "(?=a)b", "(?<!a)b", "(?P=a)", "(?"],
)
def test_flags_and_lookaround_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="flags"):
        check_pattern(pattern)


def test_a_question_mark_elsewhere_is_no_flag() -> None:
    check_pattern(r"[(?x)]\(?i(a)?")
