"""The families' marks, and which of them a checkpoint uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from worker_engine.errors import ConfigError
from worker_engine.protocol import SamplingParams, ThoughtStart
from worker_engine.text.thinking.base import Thought, ThoughtForm
from worker_engine.text.thinking.harmony import CHANNEL, END, MESSAGE, START, HarmonyThought
from worker_engine.text.thinking.marks import MarkedThought
from worker_engine.text.tokenizer import ChatTokenizer

THINK: Final = ThoughtForm("think", "<think>", "</think>")
"""Any model that writes <think> itself, or whose template writes it."""
QWEN3: Final = ThoughtForm("qwen3", "<think>", "</think>")
DEEPSEEK_R1: Final = ThoughtForm("deepseek_r1", "<think>", "</think>", implied=True)
"""Its first templates left <think> to the model, which often left it out."""
MISTRAL: Final = ThoughtForm("mistral", "[THINK]", "[/THINK]")
"""Magistral, and Mistral's later reasoning models."""
GPT_OSS: Final = ThoughtForm(
    "gpt_oss", f"{CHANNEL}analysis{MESSAGE}", f"{END}{START}assistant{CHANNEL}final{MESSAGE}", channels=True
)
FORMS: Final = {form.name: form for form in (THINK, QWEN3, DEEPSEEK_R1, MISTRAL, GPT_OSS)}
_R1_TURN: Final = "<\uff5cAssistant\uff5c>"


def thought_form(setting: str, tokenizer: ChatTokenizer) -> ThoughtForm | None:
    """Return the form of a checkpoint's thoughts; None if it has none.

    Args:
        setting: a form's name, `off`, or `auto` for what the chat template shows.

    Raises:
        ConfigError: the vocabulary lacks the marks of the named form.
    """
    form = _of_template(tokenizer) if setting == "auto" else FORMS.get(setting)
    if form is not None and form.channels:
        missing = [
            mark for mark in (CHANNEL, MESSAGE, END, START) if tokenizer.special_token_id(mark) is None
        ]
        if missing:
            raise ConfigError(f"--reasoning-parser {form.name}: the vocabulary has no token {missing[0]}")
    return form


def _of_template(tokenizer: ChatTokenizer) -> ThoughtForm | None:
    template = tokenizer.template_source
    if CHANNEL in template and tokenizer.special_token_id(CHANNEL) is not None:
        return GPT_OSS
    if MISTRAL.begin in template:
        return MISTRAL
    if THINK.end not in template:
        return None
    if "enable_thinking" in tokenizer.template_arguments:
        return QWEN3
    # From V3.1 on, `thinking` tells DeepSeek's template to write either mark.
    implied = _R1_TURN in template and "thinking" not in tokenizer.template_arguments
    return DEEPSEEK_R1 if implied else THINK


def begin_thought(
    tokenizer: ChatTokenizer,
    form: ThoughtForm,
    params: SamplingParams,
    prompt: Sequence[int],
    start: ThoughtStart,
) -> Thought:
    """Return the state of a completion of `prompt` before its first token."""
    kind = HarmonyThought if form.channels else MarkedThought
    return kind(tokenizer, form, params, prompt, start)
