"""Hugging Face's text-generation-inference: its requests, from version 2.4 on.

/invocations takes chats in OpenAI's form, and prompts in TGI's own form of `inputs` and `parameters`. TGI
ignores what it does not know, and serves the base model for an adapter that it does not know: the caller
therefore refuses both. Source: router/src/lib.rs, router/src/sagemaker.rs and
server/text_generation_server/models/flash_causal_lm.py of text-generation-inference 2.4.0 and 3.3.6.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.api.schema import CHAT, Call
from gateway.backends.containers.base import Translator, not_served, one_prompt, requested
from gateway.backends.containers.tgi_stream import TgiTranslator

_FAMILY: Final = "TGI"
_CHAT: Final = frozenset(
    {"frequency_penalty", "logprobs", "messages", "temperature", "top_logprobs", "top_p"}
)
"""Parameters of chats that TGI reads as OpenAI does."""
_COMPLETIONS: Final = frozenset({"frequency_penalty", "repetition_penalty", "top_k", "top_p"})
_COMPLETION_TOKENS: Final = 16
"""OpenAI's default for completions; TGI's own depends on its version."""
_BASE: Final = "tgi"
"""Model name of chats that use no adapter."""
_SEEDS: Final = 1 << 63
_SCHEMA_REMEDY: Final = (
    "Use response_format of type json_schema, whose schema has properties, or guided_regex."
)


class TgiForm:
    """See `ContainerForm`."""

    def body(self, call: Call, adapter: str) -> dict[str, Any]:
        given = requested(call)
        grammar = _grammar(given)
        stops, seed = stop_list(given), given.pop("seed", None)
        common: dict[str, Any] = {} if seed is None else {"seed": seed % _SEEDS}
        if stops:
            common["stop"] = stops
        if call.path == CHAT:
            return _chat(given, adapter, common, grammar)
        return _completion(given, adapter, common, grammar)

    def translator(self, call: Call, request_id: str, model: str) -> Translator:
        return TgiTranslator(request_id, model, stop_list(dict(call.parameters)), chat=call.path == CHAT)


def stop_list(parameters: dict[str, Any]) -> list[str]:
    """Remove `stop` from the parameters and return it as a list, which is the only form that TGI reads."""
    stop = parameters.pop("stop", None) or []
    return [stop] if isinstance(stop, str) else list(stop)


def _chat(
    given: dict[str, Any], adapter: str, common: dict[str, Any], grammar: dict[str, Any] | None
) -> dict[str, Any]:
    tokens = given.pop("max_tokens", None)
    tokens = given.pop("max_completion_tokens", tokens)
    if unknown := sorted(given.keys() - _CHAT):
        raise not_served(unknown[0], _FAMILY)
    body = {**given, **common, "messages": [_message(item) for item in given["messages"]]}
    if tokens is not None:
        body["max_tokens"] = tokens
    if grammar is not None:
        body["response_format"] = grammar
    return {"model": adapter or _BASE, **body, "stream": True, "stream_options": {"include_usage": True}}


def _message(message: Any) -> Any:
    """Name the developer's role as the chat templates of open models know it."""
    if isinstance(message, dict) and message.get("role") == "developer":
        return {**message, "role": "system"}
    return message


def _completion(
    given: dict[str, Any], adapter: str, common: dict[str, Any], grammar: dict[str, Any] | None
) -> dict[str, Any]:
    prompt = one_prompt(given, _FAMILY)
    temperature = given.pop("temperature", 1.0)
    parameters = {"max_new_tokens": given.pop("max_tokens", _COMPLETION_TOKENS), **common}
    if temperature:
        parameters |= {"do_sample": True, "temperature": temperature}
    if unknown := sorted(given.keys() - _COMPLETIONS):
        raise not_served(unknown[0], _FAMILY)
    parameters |= given
    if grammar is not None:
        parameters["grammar"] = grammar
    if adapter:
        parameters["adapter_id"] = adapter
    parameters |= {"details": True, "return_full_text": False}
    return {"inputs": prompt, "parameters": parameters, "stream": True}


def _grammar(given: dict[str, Any]) -> dict[str, Any] | None:
    """Take the output's constraint out of the parameters, in TGI's form; None without one.

    Raises:
        BadRequest: TGI has no such constraint.
    """
    structured = given.pop("structured_outputs", None)
    if structured is not None:
        if not isinstance(structured, dict) or structured.keys() - {"json", "regex"} or len(structured) != 1:
            raise not_served("structured_outputs", _FAMILY, _SCHEMA_REMEDY)
        given |= {f"guided_{name}": value for name, value in structured.items()}
    if (regex := given.pop("guided_regex", None)) is not None:
        return {"type": "regex", "value": regex}
    name, schema = "guided_json", given.pop("guided_json", None)
    if (wanted := given.pop("response_format", None)) is not None:
        name = "response_format"
        described = wanted.get("json_schema") if wanted.get("type") == "json_schema" else None
        schema = described.get("schema") if isinstance(described, dict) else None
        if schema is None:
            raise not_served(name, _FAMILY, _SCHEMA_REMEDY)
    if schema is None:
        return None
    if not isinstance(schema, dict) or "properties" not in schema:
        # TGI refuses a schema without properties in words that name none of the request's parameters.
        raise not_served(f"{name} without properties", _FAMILY, _SCHEMA_REMEDY)
    return {"type": "json", "value": schema}
