"""Parameters of the thought: what the chat template is given, and how the completion's thought begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from contracts.openai.parameters import TEMPLATE
from worker_engine.errors import InvalidRequest
from worker_engine.openai.fields import Fields
from worker_engine.openai.messages import Message
from worker_engine.protocol import ThoughtStart
from worker_engine.text.thinking.base import ThoughtForm
from worker_engine.text.tokenizer import ChatTokenizer

SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables by which templates turn thinking on and off: Qwen's and others', and DeepSeek's."""
CHANNEL_EFFORTS: Final = ("low", "medium", "high")
"""Efforts that gpt-oss was trained on; its template writes any other word into the prompt without effect."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning settings of a chat request.

    Attributes:
        arguments: the client's variables of the chat template.
        effort: one of EFFORTS, or None.
        budget: most tokens of the thought; None for no bound.
        include: the answer shows the thought.
    """

    arguments: Mapping[str, Any]
    effort: str | None
    budget: int | None = None
    include: bool = True

    @classmethod
    def read(cls, fields: Fields) -> Thinking:
        """Read the template's parameters alone. Raises InvalidRequest."""
        given = {name: fields.read(name, kind) for name, kind in TEMPLATE.items()}
        return cls(given["chat_template_kwargs"] or {}, given["reasoning_effort"])


def template_arguments(
    tokenizer: ChatTokenizer, form: ThoughtForm | None, thinking: Thinking
) -> Mapping[str, Any]:
    """Return the template's variables that the request sets.

    The effort is a variable of some templates. Others only turn thinking on and off: there "none" turns it
    off and every other effort on.

    Raises:
        InvalidRequest: the template does not know a variable, or has no way to follow the effort.
    """
    known, arguments = tokenizer.template_arguments, dict(thinking.arguments)
    if unknown := next((name for name in arguments if name not in known), None):
        param = f"chat_template_kwargs.{unknown}"
        raise InvalidRequest(f"{param} is not a variable of this model's chat template", param=param)
    if thinking.effort is None:
        return arguments
    if form is not None and form.channels and thinking.effort not in CHANNEL_EFFORTS:
        raise InvalidRequest(
            f"reasoning_effort must be {', '.join(CHANNEL_EFFORTS)} for this model", param="reasoning_effort"
        )
    name: str | None = "reasoning_effort"
    value: Any = thinking.effort
    if name not in known:
        name, value = next((item for item in SWITCHES if item in known), None), thinking.effort != "none"
    if name is None:
        if thinking.effort == "none" and form is None:
            return arguments
        raise InvalidRequest(
            "reasoning_effort is not known to this model's chat template. Leave it out"
            + (", or send thinking_token_budget" if form is not None else ""),
            param="reasoning_effort",
        )
    if arguments.get(name, value) != value:
        param = f"chat_template_kwargs.{name}"
        raise InvalidRequest(f"{param} and reasoning_effort contradict each other. Send one", param=param)
    return {**arguments, name: value}


def thought_start(
    form: ThoughtForm | None, thinking: Thinking, prompt: str, resumed: Message | None
) -> ThoughtStart | None:
    """Return how the completion's thought begins; None if the completion is an answer alone.

    Args:
        resumed: the message that the model goes on with, if any.

    Raises:
        InvalidRequest: there is a budget, but the model does not mark thoughts.
    """
    if form is None:
        if thinking.budget is not None:
            raise InvalidRequest(
                "thinking_token_budget is not served: this model has no thoughts. Leave it out",
                param="thinking_token_budget",
            )
        return None
    start = form.start(prompt) if resumed is None else form.resume(resumed["content"])
    return None if start is None else replace(start, budget=thinking.budget)


def demand_closing_token(
    tokenizer: ChatTokenizer, form: ThoughtForm, start: ThoughtStart, param: str
) -> None:
    """Refuse a grammar, which `param` gave, if its answer could not be told from the thought before it.

    A closing mark of several tokens can end in the middle of a token, whose rest the grammar cannot be given.

    Raises:
        InvalidRequest: naming `param`.
    """

    def is_token(mark: str) -> bool:
        return len(tokenizer.encode(mark, add_special_tokens=False)) == 1

    may_think = start.opened or is_token(form.begin)
    if may_think and not form.channels and not is_token(form.end):
        raise InvalidRequest(
            f"{param} is not served after a thought of this model, whose mark {form.end} is not one token. "
            "Turn thinking off, or leave it out",
            param=param,
        )
