"""Text to tokens and back, as vLLM's /tokenize and /detokenize do it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from contracts.openai.kinds import Flag, Items, Text
from contracts.openai.parameters import CHAT_FLAGS, MAX_MESSAGES, TEMPLATE
from worker_engine.errors import InvalidRequest
from worker_engine.http.routes import SERVICE, Route, check_model
from worker_engine.openai.body import parse_object
from worker_engine.openai.fields import Fields
from worker_engine.openai.messages import MESSAGE_SCHEMA, parse_messages
from worker_engine.openai.parameters import Parameter, SchemaOnly, object_schema
from worker_engine.openai.prepare import demand_ids
from worker_engine.openai.schema import TOOLS, read_chat_flags
from worker_engine.openai.thinking import Thinking, template_arguments
from worker_engine.openai.tools import parse_tools
from worker_engine.service import Service

MAX_TOKENS: Final = 1_000_000
_MODEL: Final = Text("", 256)
_PROMPT: Final = Text()
_TOKEN_STRS: Final = Flag()
_SPECIAL: Final = Flag(default=True)
_MESSAGES: Final = SchemaOnly(
    {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": MESSAGE_SCHEMA}
)
_TOKENIZE: Final[Mapping[str, Parameter]] = {
    "model": _MODEL,
    "prompt": _PROMPT,
    "messages": _MESSAGES,
    "tools": TOOLS,
    **CHAT_FLAGS,
    **TEMPLATE,
    "add_special_tokens": _SPECIAL,
    "return_token_strs": _TOKEN_STRS,
}
_IDS: Final = Items(int, MAX_TOKENS)
_DETOKENIZE: Final[Mapping[str, Parameter]] = {"model": _MODEL, "tokens": _IDS}


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize: the tokens of a text, or of a chat rendered with its template."""
    service = request.app[SERVICE]
    value = parse_object(await request.read())
    fields = Fields(value)
    fields.refuse_others(_TOKENIZE)
    check_model(service, fields.read("model", _MODEL))
    text, special = _text(service, fields)
    ids = await asyncio.to_thread(service.tokenizer.encode, text, add_special_tokens=special)
    answer: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": service.engine.max_model_len,
        "tokens": ids,
        "token_strs": None,
    }
    if fields.read("return_token_strs", _TOKEN_STRS):
        answer["token_strs"] = [
            service.tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids
        ]
    return web.json_response(answer)


def _text(service: Service, fields: Fields) -> tuple[str, bool]:
    """Return the text to tokenize, and whether to add special tokens: by default for plain text only."""
    chat = "messages" in fields
    if chat and "prompt" in fields:
        raise InvalidRequest("messages and prompt exclude each other", param="messages")
    special = fields.read("add_special_tokens", _SPECIAL)
    if not chat:
        if chat_only := [name for name in ("tools", *CHAT_FLAGS, *TEMPLATE) if name in fields]:
            raise InvalidRequest(f"{chat_only[0]} needs messages", param=chat_only[0])
        return fields.require("prompt", _PROMPT), special
    messages = parse_messages(fields.get("messages", None, list, "a list"))
    tools, (prompt, continues) = parse_tools(fields), read_chat_flags(fields)
    if tools is not None and not service.tokenizer.template_knows_tools:
        raise InvalidRequest("this model's chat template knows no tools", param="tools")
    text = service.tokenizer.render_chat(
        messages,
        None if tools is None else tools.tools,
        template_arguments(service.tokenizer, service.engine.thinking, Thinking.read(fields)),
        generation_prompt=prompt,
        continues=continues,
    )
    return text, special and "add_special_tokens" in fields


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize: the text of token ids, special tokens included."""
    service = request.app[SERVICE]
    fields = Fields(parse_object(await request.read()))
    fields.refuse_others(_DETOKENIZE)
    check_model(service, fields.read("model", _MODEL))
    if "tokens" not in fields:
        raise InvalidRequest("tokens is required", param="tokens")
    ids = fields.read("tokens", _IDS)
    demand_ids(service, ids, "tokens")
    text = await asyncio.to_thread(service.tokenizer.decode, ids, skip_special_tokens=False)
    return web.json_response({"prompt": text})


def _one_of(schema: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return {**schema, "oneOf": [{"required": [name]} for name in names]}


ROUTES: Final = (
    Route(
        "POST",
        "/tokenize",
        tokenize,
        "A text's or a chat's tokens (as vLLM does)",
        body=_one_of(object_schema(_TOKENIZE), "prompt", "messages"),
    ),
    Route(
        "POST",
        "/detokenize",
        detokenize,
        "The text of tokens (as vLLM does)",
        body=object_schema(_DETOKENIZE, ["tokens"]),
    ),
)
