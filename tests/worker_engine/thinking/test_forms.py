"""Thoughts in every family's marks, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.worker_engine.thinking.scripted_model import qwen_tokenizer
from tests.worker_engine.tiny_model import byte_tokenizer
from worker_engine.errors import ConfigError
from worker_engine.protocol import Grammar, GrammarKind, SamplingParams, ThoughtStart
from worker_engine.text.thinking.base import Phase, ThoughtForm
from worker_engine.text.thinking.forms import (
    DEEPSEEK_R1,
    FORMS,
    GPT_OSS,
    MISTRAL,
    QWEN3,
    THINK,
    begin_thought,
    thought_form,
)
from worker_engine.text.tokenizer import ChatTokenizer

HARMONY: Final = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")


def tokenizer(
    folder: Path, template: str = "", *special: str, base: Tokenizer | None = None
) -> ChatTokenizer:
    made = base or byte_tokenizer()
    made.add_special_tokens([AddedToken(text, special=True) for text in special])
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    return ChatTokenizer(folder)


def split(
    chat: ChatTokenizer, form: ThoughtForm, text: str, start: ThoughtStart | None = None, **sampling: Any
) -> tuple[str, str, int]:
    """Return thought, answer and the thought's tokens of a completion that says `text`."""
    params = SamplingParams(1000, **sampling)
    thought = begin_thought(chat, form, params, (), start or ThoughtStart())
    reasoning = answer = ""
    for token in chat.encode(text, add_special_tokens=False):
        answer += thought.append(token)
        reasoning += thought.take()
        if thought.stopped:
            break
    answer += thought.flush()
    return reasoning + thought.take(), answer, thought.num_tokens


@pytest.mark.parametrize("form", [THINK, QWEN3, MISTRAL], ids=lambda form: form.name)
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "letters"])
def test_marks_may_be_tokens_or_letters(tmp_path: Path, form: ThoughtForm, special: bool) -> None:
    chat = tokenizer(tmp_path, "", *((form.begin, form.end) if special else ()))
    marks = 2 if special else len(form.begin + form.end)
    assert split(chat, form, f"{form.begin}why{form.end}\n\nso") == ("why", "so", 3 + marks)
    assert split(chat, form, f" \n{form.begin}why") == (
        "why",
        "",
        5 + (marks if special else len(form.begin)) - special,
    )
    assert split(chat, form, "no thought") == ("", "no thought", 0)
    assert split(chat, form, f"a {form.begin}b{form.end}", skip_special_tokens=False)[::2] == ("", 0)
    assert split(chat, form, "") == ("", "", 0)
    assert split(chat, form, form.begin[:3]) == ("", form.begin[:3], 0), "what might have begun a thought"


def test_a_thought_that_the_prompt_opened(tmp_path: Path) -> None:
    chat = tokenizer(tmp_path, base=qwen_tokenizer())
    opened = ThoughtStart(opened=True)
    assert split(chat, QWEN3, "so é</think>é", opened) == ("so é", "é", 6)
    assert split(chat, QWEN3, "so é</thi", opened) == ("so é</thi", "", 10)
    assert split(chat, QWEN3, "a</think>\n\nb\n\nc", opened, stop=("\n\n",)) == ("a", "b", 2)


@pytest.mark.parametrize(
    ("form", "prompt", "start"),
    [
        (QWEN3, "assistant\n", ThoughtStart()),
        (QWEN3, "assistant\n<think>\n", ThoughtStart(opened=True)),
        (QWEN3, "assistant\n<think>\n\n</think>\n\n", None),
        (QWEN3, "user <think> is a mark\nassistant\n", ThoughtStart()),
        (DEEPSEEK_R1, "<A>", ThoughtStart(opened=True)),
        (DEEPSEEK_R1, "<A></think>", None),
        (GPT_OSS, "<|start|>assistant", ThoughtStart()),
    ],
)
def test_the_prompt_tells_how_the_thought_begins(
    form: ThoughtForm, prompt: str, start: ThoughtStart | None
) -> None:
    assert form.start(prompt) == start


def test_a_message_is_resumed_inside_or_after_its_thought() -> None:
    assert QWEN3.resume("<think>so far") == ThoughtStart(opened=True)
    assert QWEN3.resume("<think>so</think> far") is None
    assert QWEN3.resume("so far") is None


def test_harmony_tells_channels_apart(tmp_path: Path) -> None:
    chat = tokenizer(tmp_path, "", *HARMONY)
    thought = "<|channel|>analysis<|message|>why<|end|>"
    final = "<|start|>assistant<|channel|>final<|message|>"
    count = len(chat.encode(thought + final, add_special_tokens=False))
    assert split(chat, GPT_OSS, thought + final + "so") == ("why", "so", count)
    assert split(chat, GPT_OSS, "<|channel|>final<|message|>so") == ("", "so", 0)
    assert split(chat, GPT_OSS, "<|channel|>analysis<|message|>why") == ("why", "", 13)
    preamble = "<|start|>assistant<|channel|>commentary<|message|>wait<|end|>"
    assert split(chat, GPT_OSS, thought + preamble + final + "so")[:2] == ("why", "waitso")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("budget", [0, 2, 9])
def test_a_budget_forces_the_end(tmp_path: Path, form: ThoughtForm, budget: int) -> None:
    """The model would think forever; only the forced tokens are not its own."""
    chat = tokenizer(tmp_path, "", *HARMONY, form.begin if not form.channels else "", form.end[:1] and "<x>")
    start = ThoughtStart(opened=form.implied, budget=budget)
    thought = begin_thought(chat, form, SamplingParams(1000), (), start)
    written = [] if form.implied else chat.encode(form.begin, add_special_tokens=False)
    own, reasoning = 0, ""
    (letter,) = chat.encode("x", add_special_tokens=False)
    for step in range(200):
        forced = thought.forced
        token = written[step] if step < len(written) else letter if forced is None else forced
        own += forced is None and step >= len(written)
        thought.append(token)
        reasoning += thought.take()
        if thought.phase not in (Phase.UNDECIDED, Phase.THINKING):
            break
    assert (own, reasoning) == (budget, "x" * budget)
    closing = len(chat.encode(form.end, add_special_tokens=False))
    assert thought.num_tokens == len(written) + budget + closing
    assert thought.forced is None


def test_a_grammar_waits_for_the_end_of_the_thought(tmp_path: Path) -> None:
    chat = tokenizer(tmp_path, base=qwen_tokenizer())
    params = SamplingParams(100, grammar=Grammar(GrammarKind.REGEX, "x"))
    begin, end, letter = (
        chat.encode(text, add_special_tokens=False)[0] for text in ("<think>", "</think>", "x")
    )
    thought = begin_thought(chat, QWEN3, params, (), ThoughtStart())

    def state() -> tuple[bool, int | None, bool]:
        """Whether the grammar restricts the next token, what opens a thought, whose a letter would be."""
        return thought.constrained, thought.opening, thought.answers(letter)

    assert state() == (True, begin, True)
    assert not thought.answers(begin)
    thought.append(begin)
    assert state() == (False, None, False)
    assert not thought.answers(end)
    thought.append(end)
    assert state() == (True, None, True)


@pytest.mark.parametrize(
    ("template", "special", "form"),
    [
        ("{{ messages }}", (), None),
        ("{% if enable_thinking %}<think></think>{% endif %}", (), QWEN3),
        ("<\uff5cAssistant\uff5c>{{ messages[0].content.split('</think>') }}", (), DEEPSEEK_R1),
        ("<\uff5cAssistant\uff5c>{% if thinking %}<think>{% else %}</think>{% endif %}", (), THINK),
        ("{{ messages[0].content.split('</think>') }}", (), THINK),
        ("[THINK]", (), MISTRAL),
        ("<|channel|>analysis", HARMONY, GPT_OSS),
        ("<|channel|>analysis", (), None),
    ],
)
def test_the_template_shows_the_form(
    tmp_path: Path, template: str, special: tuple[str, ...], form: ThoughtForm | None
) -> None:
    chat = tokenizer(tmp_path, template, *special)
    assert thought_form("auto", chat) is form
    assert thought_form("off", chat) is None
    assert thought_form("mistral", chat) is MISTRAL


def test_harmony_needs_its_tokens(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gpt_oss: the vocabulary has no token"):
        thought_form("gpt_oss", tokenizer(tmp_path))
