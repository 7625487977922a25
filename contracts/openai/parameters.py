"""OpenAI's and vLLM's request parameters: one table that gateway and bundled worker check by.

Of `messages` and `tools` only the limits are here: the gateway checks what any backend needs, the worker what
it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from contracts.openai.kinds import (
    MAX_TOKENS,
    Arguments,
    Biases,
    CountOrAll,
    Flag,
    Integer,
    Items,
    Kind,
    Number,
    OneOf,
    Options,
    Prompts,
    Stops,
)
from contracts.usage_event import MAX_PROMPT_ADAPTERS

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 128
_LOGPROBS: Final = Integer(0, 20)
_OUTPUT_TOKENS: Final = Integer(1, MAX_TOKENS)
TRUNCATE: Final = CountOrAll(MAX_TOKENS)
"""Last tokens of a prompt that are used; -1 as many as the context has room for."""
PROMPT: Final = Prompts(256)
ADAPTERS: Final = Items(str, MAX_PROMPT_ADAPTERS, least=1, max_length=200)
"""Model names of a completion's prompts, one for each; the gateway's own parameter."""
INPUT: Final = Prompts(2048)
"""Inputs of one embeddings request, as at OpenAI."""
SAMPLING: Final[Mapping[str, Kind]] = {
    "temperature": Number(0.0, 2.0, 1.0),
    "top_p": Number(0.0, 1.0, 1.0),
    "min_p": Number(0.0, 1.0, 0.0),
    "presence_penalty": Number(-2.0, 2.0, 0.0),
    "frequency_penalty": Number(-2.0, 2.0, 0.0),
    "repetition_penalty": Number(0.01, 10.0, 1.0),
    "max_tokens": _OUTPUT_TOKENS,
    "min_tokens": Integer(0, MAX_TOKENS),
    "top_k": Integer(-1, 1 << 20),
    "seed": Integer(-(1 << 63), (1 << 63) - 1),
    "include_stop_str_in_output": Flag(),
    "skip_special_tokens": Flag(default=True),
    "ignore_eos": Flag(),
    "stop": Stops(16, 1024),
    "stop_token_ids": Items(int, 64),
    "logit_bias": Biases(1024, 100),
    "bad_words": Items(str, 64),
    "allowed_token_ids": Items(int, 1 << 16),
}
"""How tokens are drawn."""
WORKER_BOUNDS: Final[Mapping[str, Kind]] = {
    "top_p": Number(0.0, 1.0, 1.0, open_low=True),
    "bad_words": Items(str, 64, max_length=200),
    "allowed_token_ids": Items(int, 1 << 16, least=1),
}
"""Narrower bounds of the bundled worker; the gateway accepts the values outside them for other backends."""
_GENERATION: Final[Mapping[str, Kind]] = {
    **SAMPLING,
    "n": Integer(1, 128),
    "stream": Flag(),
    "stream_options": Options(("include_usage", "continuous_usage_stats", "include_obfuscation")),
    "return_token_ids": Flag(),
    "truncate_prompt_tokens": TRUNCATE,
    "prompt_logprobs": _LOGPROBS,
}
CHAT_FLAGS: Final[Mapping[str, Kind]] = {
    "add_generation_prompt": Flag(default=True),
    "continue_final_message": Flag(),
}
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort`: OpenAI's, and vLLM's `max`."""
TEMPLATE: Final[Mapping[str, Kind]] = {
    "chat_template_kwargs": Arguments(
        most=16,
        max_bytes=4096,
        max_depth=4,
        reserved=frozenset(
            {
                "add_generation_prompt",
                "bos_token",
                "chat_template",
                "continue_final_message",
                "conversation",
                "documents",
                "eos_token",
                "max_length",
                "messages",
                "model_config",
                "pad_token",
                "padding",
                "return_assistant_tokens_mask",
                "return_dict",
                "return_tensors",
                "tokenize",
                "tokenizer",
                "tokenizer_kwargs",
                "tools",
                "truncation",
            }
        ),
    ),
    "reasoning_effort": OneOf(EFFORTS),
}
"""What the chat template is given besides messages and tools.

The reserved names are parameters of their own, or arguments of vLLM's and transformers'
`apply_chat_template`: `chat_template` would replace the template by the client's code.
"""
THINKING: Final[Mapping[str, Kind]] = {
    **TEMPLATE,
    "include_reasoning": Flag(default=True),
    "thinking_token_budget": Integer(0, MAX_TOKENS),
}
"""How a model thinks before its answer, in vLLM's words."""
CHAT: Final[Mapping[str, Kind]] = {
    **_GENERATION,
    **CHAT_FLAGS,
    **THINKING,
    "max_completion_tokens": _OUTPUT_TOKENS,
    "logprobs": Flag(),
    "top_logprobs": _LOGPROBS,
    "parallel_tool_calls": Flag(default=True),
}
COMPLETIONS: Final[Mapping[str, Kind]] = {
    **_GENERATION,
    "max_tokens": Integer(0, MAX_TOKENS),
    "echo": Flag(),
    "logprobs": _LOGPROBS,
}
"""Both planes accept 0 for `max_tokens` only with `echo`."""
EMBEDDINGS: Final[Mapping[str, Kind]] = {
    "dimensions": Integer(1, 1 << 16),
    "truncate_prompt_tokens": TRUNCATE,
}
EMBEDDING_FORMATS: Final = ("float", "base64")
CONSTRAINTS: Final = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
"""Parameters that constrain the output to a grammar."""
IGNORED: Final = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
    }
)
"""OpenAI's parameters that clients send by habit and that have no effect here.

The gateway does not pass them on. The worker's chats and completions refuse `store: true`."""
