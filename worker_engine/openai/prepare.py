"""From a checked body to what the engine takes: prompt tokens, sampling parameters, a compiled grammar."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import orjson

from worker_engine.errors import ContextLengthExceeded, InvalidRequest
from worker_engine.grammar_limits import check_schema
from worker_engine.openai.messages import Message, use_tools
from worker_engine.openai.schema import CompletionRequest
from worker_engine.protocol import Grammar, GrammarKind, SamplingParams
from worker_engine.service import Service
from worker_engine.tool_calls.base import CallForm, Function, lark
from worker_engine.tool_calls.forms import form_of

COMPLETION_DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default for /v1/completions; a chat goes on to the context's end."""
_INLINE_CHARS: Final = 16384
"""Prompts up to this length are tokenized on the event loop (about 2 ms); longer ones in a thread."""


def call_form(service: Service, body: CompletionRequest) -> CallForm | None:
    """How this model writes calls, when the request has tools.

    Raises:
        InvalidRequest: the request has tools, or calls in its history, and the chat template knows none.
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


async def prompt_tokens(service: Service, body: CompletionRequest) -> tuple[int, ...]:
    """The prompt's token ids. Raises InvalidRequest when there are none, or some are out of range."""
    if isinstance(body.prompt, tuple):
        _demand_ids(service, body.prompt, "prompt")
        if not body.prompt:
            raise InvalidRequest("prompt must not be empty", param="prompt")
        return body.prompt
    text = body.prompt if body.messages is None else _render(service, body, body.messages)
    encode, special = service.tokenizer.encode, body.messages is None
    if len(text) <= _INLINE_CHARS:
        ids = encode(text, add_special_tokens=special)
    else:
        ids = await asyncio.to_thread(encode, text, add_special_tokens=special)
    if not ids:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    return tuple(ids)


def _render(service: Service, body: CompletionRequest, messages: tuple[Message, ...]) -> str:
    return service.tokenizer.render_chat(messages, body.tools.tools if body.tools is not None else None)


def _demand_ids(service: Service, ids: tuple[int, ...], param: str) -> None:
    vocab = service.model.vocab_size
    if not all(0 <= item < vocab for item in ids):
        raise InvalidRequest(f"{param} must hold token ids from 0 to {vocab - 1}", param=param)


async def sampling_params(
    service: Service, body: CompletionRequest, num_prompt_tokens: int, form: CallForm | None
) -> SamplingParams:
    """The parameters of the request's first choice, its grammar compiled.

    Raises:
        InvalidRequest: naming the parameter at fault.
        ContextLengthExceeded: prompt and completion fit neither the context nor the KV cache.
    """
    asked = body.sampling
    _demand_ids(service, asked.stop_token_ids, "stop_token_ids")
    _demand_ids(service, tuple(token for token, _ in asked.logit_bias), "logit_bias")
    capacity = service.config.max_num_seqs + service.config.max_waiting
    if body.n > capacity:
        raise InvalidRequest(f"n must be at most {capacity}, which this worker takes at once", param="n")
    max_tokens = _max_tokens(service, body, num_prompt_tokens)
    if asked.min_tokens > max_tokens:
        raise InvalidRequest(f"min_tokens must be at most max_tokens, {max_tokens}", param="min_tokens")
    params = replace(asked, max_tokens=max_tokens, bad_words=_bad_words(service, body.bad_words))
    if form is not None:
        # The marks of a call may be special tokens, which the parser must see.
        params = replace(params, skip_special_tokens=False)
    param, grammar = _grammar(service, body, form)
    if grammar is None:
        return params
    await service.engine.grammars.prepare(grammar, param)
    return replace(params, grammar=grammar)


def _grammar(service: Service, body: CompletionRequest, form: CallForm | None) -> tuple[str, Grammar | None]:
    tools = body.tools
    if form is not None and tools is not None and tools.required:
        _check_functions(tools.functions)
        text = lark(
            form,
            tools.functions,
            parallel=tools.parallel,
            special_token_id=service.tokenizer.special_token_id,
        )
        return "tools", Grammar(GrammarKind.LARK, text)
    return ("", None) if body.constraint is None else (body.constraint.param, body.constraint.grammar)


def _check_functions(functions: tuple[Function, ...]) -> None:
    for item in functions:
        try:
            check_schema(orjson.dumps(item.parameters).decode())
        except InvalidRequest as error:
            raise InvalidRequest(f"tools: parameters of {item.name}: {error}", param="tools") from error


def _bad_words(service: Service, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens at the beginning of a text and behind a space, where they differ."""
    encode = service.tokenizer.encode
    spelled = (encode(prefix + word, add_special_tokens=False) for word in words for prefix in ("", " "))
    return tuple(dict.fromkeys(tuple(ids) for ids in spelled if ids))


def _max_tokens(service: Service, body: CompletionRequest, num_prompt_tokens: int) -> int:
    chat = body.messages is not None
    limit = service.engine.max_model_len
    room = limit - num_prompt_tokens
    max_tokens = body.max_tokens or (
        max(room, 1) if chat else min(COMPLETION_DEFAULT_MAX_TOKENS, max(room, 1))
    )
    param, total = "messages" if chat else "prompt", num_prompt_tokens + max_tokens
    if max_tokens > room:
        raise ContextLengthExceeded(
            f"this model's context is {limit} tokens, but the request asks for {total}: {num_prompt_tokens} "
            f"in the prompt and {max_tokens} for the completion. Shorten the prompt or lower max_tokens",
            param=param,
        )
    if service.engine.fits(total):
        return max_tokens
    if body.max_tokens is None and service.engine.fits(num_prompt_tokens + 1):
        return service.engine.pool_tokens - num_prompt_tokens
    raise ContextLengthExceeded(
        f"this worker's KV cache holds {service.engine.pool_tokens} tokens, but the request asks for "
        f"{total}: {num_prompt_tokens} in the prompt and {max_tokens} for the completion",
        param=param,
    )
