"""Turns a validated body into engine input: prompt tokens, sampling parameters, a compiled grammar."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import orjson

from worker_engine.errors import ContextLengthExceeded, InvalidRequest
from worker_engine.openai.context_length import chat_too_long, prompt_too_long, text_too_long
from worker_engine.openai.messages import Message, use_tools
from worker_engine.openai.schema import CompletionRequest, Prompt
from worker_engine.openai.thinking import Thinking, template_arguments, thought_start
from worker_engine.protocol import Grammar, GrammarKind, SamplingParams, ThoughtStart
from worker_engine.service import Service
from worker_engine.text.grammar_limits import MAX_NAMES, check_schema
from worker_engine.text.schema_loops import without_endless_references
from worker_engine.text.tool_calls.base import CallForm, Function, lark
from worker_engine.text.tool_calls.forms import form_of

COMPLETION_DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default for /v1/completions; a chat may fill the context."""
_TOKENS_APART: Final = 64
INLINE_CHARS: Final = 16384
"""Prompts up to this length are tokenized on the event loop (about 2 ms); longer ones in a thread."""


def call_form(service: Service, body: CompletionRequest) -> CallForm | None:
    """Return this model's tool call format, when the request has tools.

    Raises:
        InvalidRequest: the request has tools, or calls in its history, and the chat template supports none.
    """
    tokenizer = service.tokenizer
    form = form_of(tokenizer.template_source, knows_tools=tokenizer.template_knows_tools)
    history = use_tools(body.messages or ())
    if form is None and body.tools is not None:
        raise InvalidRequest("this model's chat template knows no tools that can be parsed", param="tools")
    if not tokenizer.template_knows_tools and history is not None:
        param = f"messages[{history}]"
        raise InvalidRequest(f"{param}: this model's chat template knows no tools", param=param)
    return form if body.tools is not None else None


async def prompt_tokens(
    service: Service, body: CompletionRequest
) -> tuple[list[tuple[int, ...]], ThoughtStart | None]:
    """Return the token ids of the chat, or of each prompt of a completion, and how a chat's thought begins.

    Truncation keeps the last ones.

    Raises:
        InvalidRequest: a prompt has no tokens, or some are out of range.
        ContextLengthExceeded: a text is so long that its tokens need not be counted.
    """
    room = service.engine.max_model_len - (body.max_tokens or 1)
    if body.messages is None:
        return await tokenize(service, body.prompts, "prompt", truncate=body.truncate, room=room), None
    text, thought = _render(service, body, body.messages)
    ids = await tokenize(service, [text], "messages", truncate=body.truncate, room=room, special=False)
    return ids, thought


async def tokenize(
    service: Service,
    prompts: Sequence[Prompt],
    param: str,
    *,
    truncate: int | None,
    room: int,
    special: bool = True,
) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt; truncation keeps the last ones.

    Args:
        param: the parameter that the prompts are from.
        truncate: tokens of a prompt that are kept, -1 for those that `room` takes; None for all.
        special: texts get the tokenizer's special tokens.

    Raises:
        InvalidRequest: a prompt has no tokens, or some are out of range.
        ContextLengthExceeded: a text is so long that its tokens need not be counted.
    """
    most = max(room, 1) if truncate == -1 else truncate
    held = list(prompts)
    for index, prompt in enumerate(held):
        if isinstance(prompt, tuple):
            demand_ids(service, prompt, param, place_of(held, index))
        elif most is None:
            _demand_short(service, prompt, param, place_of(held, index))
        else:
            held[index] = _text_end(service, prompt, most)
    if sum(len(prompt) for prompt in held if isinstance(prompt, str)) <= INLINE_CHARS:
        tokens = _tokenize(service, held, special)
    else:
        tokens = await asyncio.to_thread(_tokenize, service, held, special)
    for index, ids in enumerate(tokens):
        if not ids:
            name = "prompt" if param == "messages" else param
            raise InvalidRequest(f"{name}{place_of(held, index)} must not be empty", param=name)
    return tokens if most is None else [ids[-most:] for ids in tokens]


def _text_end(service: Service, text: str, num_tokens: int) -> str:
    """Return the end of a text that holds its last tokens, since tokenizing all of 8 MB takes seconds.

    Tokens depend on few characters to their left, so text further away can be cut off.
    """
    return text[-(num_tokens + _TOKENS_APART) * service.tokenizer.longest_token :]


def place_of(prompts: Sequence[object], index: int) -> str:
    """Return the index suffix of a parameter's name in a message; "" if there is only one prompt."""
    return f"[{index}]" if len(prompts) > 1 else ""


def _tokenize(service: Service, prompts: Sequence[Prompt], special: bool) -> list[tuple[int, ...]]:
    encode = service.tokenizer.encode
    return [
        prompt if isinstance(prompt, tuple) else tuple(encode(prompt, add_special_tokens=special))
        for prompt in prompts
    ]


def _demand_short(service: Service, text: str, param: str, place: str) -> None:
    """Refuse a text by its length where that is enough: 8 MB take seconds and hundreds of MiB to tokenize.

    Raises:
        ContextLengthExceeded: more characters than the context's tokens can stand for.
    """
    context = service.engine.max_model_len
    most = context * service.tokenizer.longest_token
    if len(text) > most:
        raise text_too_long(context, len(text), most, param=param, place=place)


def _render(
    service: Service, body: CompletionRequest, messages: tuple[Message, ...]
) -> tuple[str, ThoughtStart | None]:
    """Return the chat as a prompt, and how the thought of its answer begins."""
    form, thinking = service.engine.thinking, body.thinking or Thinking({}, None)
    text = service.tokenizer.render_chat(
        messages,
        body.tools.tools if body.tools is not None else None,
        template_arguments(service.tokenizer, form, thinking),
        generation_prompt=body.generation_prompt,
        continues=body.continues,
    )
    return text, thought_start(form, thinking, text, messages[-1] if body.continues else None)


def demand_ids(service: Service, ids: tuple[int, ...], param: str, place: str = "") -> None:
    """Raise InvalidRequest for a token id that the model does not have."""
    vocab = service.model.vocab_size
    if not all(0 <= item < vocab for item in ids):
        raise InvalidRequest(f"{param}{place} must hold token ids from 0 to {vocab - 1}", param=param)


async def sampling_params(
    service: Service, body: CompletionRequest, lengths: Sequence[int], form: CallForm | None
) -> list[SamplingParams]:
    """Return the parameters of the first choice of each prompt, with a compiled grammar.

    Args:
        lengths: tokens of each prompt.

    Raises:
        InvalidRequest: naming the malformed parameter.
        ContextLengthExceeded: a prompt and its completion fit neither the context nor the KV cache.
    """
    sampling = body.sampling
    demand_ids(service, sampling.stop_token_ids, "stop_token_ids")
    demand_ids(service, tuple(token for token, _ in sampling.logit_bias), "logit_bias")
    demand_ids(service, sampling.allowed_token_ids or (), "allowed_token_ids")
    _demand_room(service, body.n, len(lengths))
    limits = [
        _max_tokens(service, body, length, place_of(lengths, index)) for index, length in enumerate(lengths)
    ]
    if sampling.min_tokens > min(limits):
        raise InvalidRequest(f"min_tokens must be at most max_tokens, {min(limits)}", param="min_tokens")
    ends = {*service.model.eos_token_ids, *sampling.stop_token_ids}
    if (
        sampling.allowed_token_ids is not None
        and sampling.min_tokens
        and ends.issuperset(sampling.allowed_token_ids)
    ):
        raise InvalidRequest(
            "allowed_token_ids are all ends of the text, which min_tokens forbids", param="allowed_token_ids"
        )
    params = replace(sampling, bad_words=_bad_words(service, body.bad_words))
    if form is not None:
        # Keep special tokens: call markers may be special tokens, which the parser needs.
        params = replace(params, skip_special_tokens=False)
    param, grammar = _grammar(service, body, form)
    if grammar is not None:
        # Hold one queue slot while the grammar waits and compiles; the generation then takes its own.
        with service.limits.slot(body.origin.tenant):
            await service.engine.grammars.prepare(grammar, param, body.origin.tenant)
        params = replace(params, grammar=replace(grammar, param=param))
    return [replace(params, max_tokens=limit) for limit in limits]


def _demand_room(service: Service, n: int, prompts: int) -> None:
    """Raise InvalidRequest if the request has more sequences than the worker accepts at once."""
    capacity = service.limits.most_at_once
    if n > capacity:
        raise InvalidRequest(f"n must be at most {capacity}, which this worker takes at once", param="n")
    if n * prompts > capacity:
        raise InvalidRequest(
            f"{prompts} prompts of {n} choices are more than the {capacity} sequences that this worker takes "
            "at once. Send fewer prompts in a request",
            param="prompt",
        )


def _grammar(service: Service, body: CompletionRequest, form: CallForm | None) -> tuple[str, Grammar | None]:
    tools = body.tools
    if form is not None and tools is not None and tools.required:
        text = lark(
            form,
            _checked_functions(tools.functions),
            parallel=tools.parallel,
            # Grammars match no added token by its spelling: Qwen's <tool_call> is one, though not special.
            added_token_id=service.tokenizer.added_token_id,
        )
        return "tools", Grammar(GrammarKind.LARK, text)
    return ("", None) if body.constraint is None else (body.constraint.param, body.constraint.grammar)


def _checked_functions(functions: tuple[Function, ...]) -> tuple[Function, ...]:
    """Return the functions without references that nothing can match. Raises InvalidRequest."""
    names, checked = 0, []
    for item in functions:
        try:
            names += check_schema(orjson.dumps(item.parameters).decode())
            parameters = without_endless_references(item.parameters)
        except InvalidRequest as error:
            raise InvalidRequest(f"tools: parameters of {item.name}: {error}", param="tools") from error
        checked.append(replace(item, parameters=parameters))
    if names > MAX_NAMES:
        raise InvalidRequest(
            f"tools: the functions' parameters have {names} names together, at most {MAX_NAMES} are served",
            param="tools",
        )
    return tuple(checked)


def _bad_words(service: Service, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return each word's tokens at the start of a text and after a space, where they differ."""
    encode = service.tokenizer.encode
    spelled = (encode(prefix + word, add_special_tokens=False) for word in words for prefix in ("", " "))
    return tuple(dict.fromkeys(tuple(ids) for ids in spelled if ids))


def _max_tokens(service: Service, body: CompletionRequest, num_prompt_tokens: int, place: str) -> int:
    chat = body.messages is not None
    limit = service.engine.max_model_len
    room = limit - num_prompt_tokens
    default = max(room, 1) if chat else min(COMPLETION_DEFAULT_MAX_TOKENS, max(room, 1))
    max_tokens = default if body.max_tokens is None else body.max_tokens
    if max_tokens > room:
        raise _too_long(body, limit, num_prompt_tokens, max_tokens, place)
    if service.engine.fits(num_prompt_tokens + max_tokens):
        return max_tokens
    if body.max_tokens is None and service.engine.fits(num_prompt_tokens + 1):
        return service.engine.pool_tokens - num_prompt_tokens
    reason = (
        f"This worker's memory holds {service.engine.pool_tokens} tokens; the model itself takes {limit}."
    )
    raise _too_long(body, service.engine.pool_tokens, num_prompt_tokens, max_tokens, place, reason)


def _too_long(
    body: CompletionRequest, limit: int, prompt: int, completion: int, place: str, reason: str = ""
) -> ContextLengthExceeded:
    if body.messages is None:
        return prompt_too_long(limit, prompt, completion, place=place, reason=reason)
    return chat_too_long(limit, prompt, None if body.max_tokens is None else completion, reason=reason)
