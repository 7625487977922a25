"""Tool calls in each family's form: parsed as they stream, wherever the text is cut, and enforced."""

from __future__ import annotations

import json

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_engine.tiny_model import byte_tokenizer
from worker_engine.text.tool_calls.base import CallForm, Function, lark
from worker_engine.text.tool_calls.forms import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, form_of
from worker_engine.text.tool_calls.parser import CallParser

ONE = '{"name": "get_weather", "arguments": {"city": "Zürich \\"}{\\" [", "days": [1, {"x": 2}]}}'
TWO = '{"arguments": {}, "name": "now"}'
NAMED = f"[TOOL_CALLS]get_weather[ARGS]{json.dumps(json.loads(ONE)['arguments'], ensure_ascii=False)}"
NAMED_WITH_IDS = (
    NAMED.replace("[ARGS]", "[CALL_ID]a1B2c3D4e[ARGS]") + "\n[TOOL_CALLS]now[CALL_ID]123456789[ARGS] {}"
)
SPOKEN = "I look: \n"
ANSWERS: dict[str, tuple[CallForm, str, str]] = {
    "hermes": (
        HERMES,
        f"{SPOKEN}<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>\n",
        SPOKEN,
    ),
    "mistral": (MISTRAL, f"[TOOL_CALLS] [{ONE}, {TWO}]", ""),
    "mistral, tight": (MISTRAL, f"{SPOKEN}[TOOL_CALLS][{ONE},{TWO}]", SPOKEN),
    "mistral, named": (MISTRAL_NAMED, f"{SPOKEN}{NAMED}[TOOL_CALLS]now[ARGS]{{}}", SPOKEN),
    "mistral, with ids": (MISTRAL_NAMED, NAMED_WITH_IDS, ""),
    "llama": (LLAMA, f"{ONE}; {TWO}".replace("arguments", "parameters"), ""),
    "llama, tag": (LLAMA, f"<|python_tag|>{ONE}; {TWO}".replace("arguments", "parameters"), ""),
}


def parse(form: CallForm, text: str, cuts: list[int] | None = None) -> tuple[str, list[list[str]]]:
    """Content and [name, arguments] of each call, the text fed in pieces."""
    parser = CallParser(form)
    ends = sorted({min(cut, len(text)) for cut in cuts or []} | {len(text)})
    content, start = "", 0
    calls: list[list[str]] = []
    for end in ends:
        parts = [parser.feed(text[start:end])] + ([parser.finish()] if end == len(text) else [])
        start = end
        for part in parts:
            content += part.content
            for call in part.calls:
                if call.name is not None:
                    assert call.index == len(calls)
                    calls.append([call.name, ""])
                calls[call.index][1] += call.arguments
    return content, calls


@pytest.mark.parametrize("case", ANSWERS)
@settings(max_examples=80, deadline=None)
@given(cuts=st.lists(st.integers(0, 260), max_size=40))
def test_calls_are_found_wherever_the_text_is_cut(case: str, cuts: list[int]) -> None:
    form, text, spoken = ANSWERS[case]
    content, calls = parse(form, text, cuts)
    assert content == spoken
    assert [name for name, _ in calls] == ["get_weather", "now"]
    assert json.loads(calls[0][1]) == json.loads(ONE)["arguments"]
    assert calls[1][1] == "{}"


@pytest.mark.parametrize("form", [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA])
@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        "",
        "a < b, <tool, [TOOL",
        '{"not": "a call"}',
        "<tool_call>\nno JSON\n</tool_call> after",
        "{broken",
        "  {x} y",
        "[TOOL_CALLS] nothing",
        '<tool_call>\n{"name": 5}\n</tool_call>',
        '{"name": ""}',
        '<tool_call>{"a": }</tool_call>',
        "<|python_tag|>print(1)",
        "[TOOL_CALLS] [1, 2]",
        "<tool_call>",
        "[TOOL_CALLS]two words[ARGS]{}",
        "[TOOL_CALLS]f[ARGS]no object",
        "[TOOL_CALLS]f",
        f"[TOOL_CALLS]{'long' * 50}",
        "[TOOL_CALLS][ARGS]{}",
    ],
)
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 60), max_size=20))
def test_what_is_no_call_is_shown(form: CallForm, text: str, cuts: list[int]) -> None:
    assert parse(form, text, cuts) == (text, [])


def test_arguments_stream_before_the_call_is_complete() -> None:
    parser = CallParser(HERMES)
    assert parser.feed("<tool_call>\n").calls == ()
    first = parser.feed('{"name": "f", "arguments": {"text": "ab')
    assert [(call.name, call.arguments) for call in first.calls] == [("f", '{"text": "ab')]
    second = parser.feed('cd"}')
    assert [(call.name, call.arguments) for call in second.calls] == [(None, 'cd"}')]
    assert parser.feed("}\n</tool_call>").calls == ()
    assert parser.num_calls == 1


@pytest.mark.parametrize("arguments", ['{"a": }', "{broken"])
def test_arguments_that_are_no_json_are_told_as_the_model_wrote_them(arguments: str) -> None:
    assert parse(MISTRAL_NAMED, f"[TOOL_CALLS]f[ARGS]{arguments}") == ("", [["f", arguments]])
    text = f"[TOOL_CALLS]f[ARGS]{arguments}"
    assert parse(MISTRAL_NAMED, text, [*range(len(text))]) == ("", [["f", arguments]])


def test_a_call_cut_short_keeps_what_was_told() -> None:
    content, calls = parse(HERMES, '<tool_call>\n{"name": "f", "arguments": {"text": "ab')
    assert (content, calls) == ("", [["f", '{"text": "ab']])


def cut(form: CallForm, text: str, *, forced: bool) -> tuple[str, list[list[str]]]:
    """Content and calls of an answer that `max_tokens` cuts behind `text`."""
    parser = CallParser(form, forced=forced)
    content, calls = "", list[list[str]]()
    for part in (parser.feed(text), parser.finish(truncated=True)):
        content += part.content
        for call in part.calls:
            if call.name is not None:
                calls.append([call.name, ""])
            calls[call.index][1] += call.arguments
    return content, calls


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("case", ANSWERS)
def test_a_cut_anywhere_shows_no_markup(case: str, forced: bool) -> None:
    form, text, spoken = ANSWERS[case]
    text = text.removeprefix(spoken) if forced else text
    spoken = "" if forced else spoken
    whole = json.dumps(json.loads(ONE)["arguments"], ensure_ascii=False)
    for end in range(len(text) + 1):
        content, calls = cut(form, text[:end], forced=forced)
        assert spoken.startswith(content)
        assert [name for name, _ in calls] == ["get_weather", "now"][: len(calls)]
        assert all(name != "get_weather" or whole.startswith(arguments) for name, arguments in calls)


def test_a_cut_keeps_an_object_that_is_no_call() -> None:
    text = '{"answer": "a long text that ends'
    assert cut(LLAMA, text, forced=False) == (text, [])
    assert cut(LLAMA, '{"name": "f", "para', forced=False) == ("", [])


TEMPLATES = {
    "{% if tools %}<tool_call>{% endif %}": HERMES,
    "{% if tools %}[TOOL_CALLS]{% endif %}": MISTRAL,
    "{% if tools %}[TOOL_CALLS]x[ARGS]{% endif %}": MISTRAL_NAMED,
    '{% if tools %}{"name": x, "parameters": y}{% endif %}': LLAMA,
    "{% if tools %}who knows{% endif %}": None,
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_template_tells_the_form(template: str) -> None:
    assert form_of(template, knows_tools=True) is TEMPLATES[template]
    assert form_of(template, knows_tools=False) is None


WEATHER = Function(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"enum": ["Zürich", "Bern"]}},
    },
)
NOW = Function("now", {"type": "object", "properties": {}, "additionalProperties": False})


def accepts(form: CallForm, functions: list[Function], text: str, *, parallel: bool, **special: int) -> bool:
    """Return True if the grammar of these calls accepts exactly `text`, with bytes as tokens."""
    tokenizer = llguidance.LLTokenizer(byte_tokenizer().to_str(), n_vocab=256, eos_token=[255])
    grammar = lark(form, functions, parallel=parallel, added_token_id=special.get)
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = byte_tokenizer().encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("form", [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA])
def test_a_grammar_holds_the_model_to_its_form(form: CallForm) -> None:
    def written(*calls: str) -> str:
        if form is HERMES:
            return "\n".join(f"<tool_call>\n{item}\n</tool_call>" for item in calls)
        if form is MISTRAL_NAMED:
            return "".join(f"[TOOL_CALLS]{item}" for item in calls)
        return f"[TOOL_CALLS] [{', '.join(calls)}]" if form is MISTRAL else "; ".join(calls)

    def call(name: str, **arguments: str) -> str:
        said = json.dumps(arguments, ensure_ascii=False)
        if form.naming:
            return f"{name}{form.naming}{said}"
        return json.dumps({"name": name, form.arguments: arguments}, ensure_ascii=False)

    good, now = call("get_weather", city="Zürich"), call("now")
    both = [WEATHER, NOW]
    assert accepts(form, both, written(good), parallel=False)
    assert accepts(form, both, written(good, now, good), parallel=True)
    assert not accepts(form, both, written(good, now), parallel=False)
    assert not accepts(form, [WEATHER], written(now), parallel=True)
    for text in ("", "words", written(call("get_weather", city="Wien")), written(good)[:-1]):
        assert not accepts(form, both, text, parallel=True)
    content, calls = parse(form, written(good, now))
    assert (content, [name for name, _ in calls]) == ("", ["get_weather", "now"])


def test_special_tokens_stand_as_such_in_a_grammar() -> None:
    """The text of a special token, spelt letter by letter, opens no call."""
    marks = {"[TOOL_CALLS]": 5, "[ARGS]": 6}
    grammar = lark(MISTRAL_NAMED, [WEATHER, NOW], parallel=True, added_token_id=marks.get)
    assert grammar.count("<[5]>") == 2
    assert grammar.count("<[6]>") == 2
    assert not accepts(MISTRAL_NAMED, [NOW], "[TOOL_CALLS]now[ARGS]{}", parallel=True, **marks)
    assert accepts(MISTRAL_NAMED, [NOW], "[TOOL_CALLS]now[ARGS]{}", parallel=True)
