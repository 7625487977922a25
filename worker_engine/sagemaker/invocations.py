"""SageMaker's container contract: POST /invocations with LMI's bodies, or OpenAI's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from contracts.adapters.reference import AdapterRef
from contracts.openai.kinds import Flag
from worker_engine.choices import merge
from worker_engine.errors import InvalidRequest
from worker_engine.http.routes import SERVICE, Route, check_model
from worker_engine.openai import schema as openai_schema
from worker_engine.openai.body import parse_object
from worker_engine.openai.generation import origin_of, request_id_of, respond, serve
from worker_engine.openai.parameters import SchemaOnly, object_schema
from worker_engine.openai.prepare import prompt_tokens, sampling_params
from worker_engine.protocol import GenerateRequest, Origin
from worker_engine.sagemaker import schema
from worker_engine.sagemaker.answer import LmiAnswer
from worker_engine.sagemaker.errors import in_lmi_form
from worker_engine.sagemaker.schema import BODY, LmiRequest, body_adapters
from worker_engine.service import Service

ADAPTER_HEADER: Final = "X-Amzn-SageMaker-Adapter-Identifier"
_FORMS: Final = ("inputs", "messages", "prompt")


async def invoke(request: web.Request) -> web.StreamResponse:
    """`inputs` is LMI's form; `messages` or `prompt` OpenAI's, whose `model` may be left out."""
    value = parse_object(await request.read())
    forms = [name for name in _FORMS if value.get(name) is not None]
    if len(forms) != 1:
        names = ", ".join(_FORMS)
        raise InvalidRequest(f"the body must hold one of {names}", param=forms[1] if forms else "inputs")
    if forms == ["inputs"]:
        return await _generate(request, value)
    return await _openai(request, value, chat=forms == ["messages"])


async def _openai(request: web.Request, value: dict[str, Any], *, chat: bool) -> web.StreamResponse:
    service = request.app[SERVICE]
    name = request.headers.get(ADAPTER_HEADER)
    weighted = isinstance(value.get("adapters"), list) and any(
        isinstance(item, dict) for item in value["adapters"]
    )
    if name is not None or not weighted:
        named = body_adapters(value, 1)[0] if name is None else name
        value = {key: item for key, item in value.items() if key != "adapters"}
        if named:
            value["model"] = service.registry.get(named, param=_param(request)).name
    value.setdefault("model", service.config.served_model_name)
    return await serve(request, openai_schema.check(value, chat=chat), jsonlines=True)


async def _generate(request: web.Request, value: dict[str, Any]) -> web.StreamResponse:
    service = request.app[SERVICE]
    body = schema.parse(value, header_adapter=request.headers.get(ADAPTER_HEADER))
    model = value.get("model") or ""
    check_model(service, model)
    named = "" if model == service.config.served_model_name else model
    refs = [_adapter(request, service, name or named) for name in body.adapters]
    room = service.limits.most_at_once
    if len(body.inputs) > room:
        raise InvalidRequest(
            f"inputs must be at most {room}, which this worker takes at once", param="inputs"
        )
    request_id, origin = request_id_of(request), origin_of(request, body.completion.origin)
    requests = [
        replace(await _request(service, body, value, text, ref, request_id, origin), place=place)
        for place, (text, ref) in enumerate(zip(body.inputs, refs, strict=True))
    ]
    deltas = merge([service.generate(item) for item in requests])
    answer = LmiAnswer(service.tokenizer, body)
    return await respond(request, deltas, answer, stream=body.completion.stream, request_id=request_id)


async def _request(
    service: Service,
    body: LmiRequest,
    value: dict[str, Any],
    text: str,
    ref: AdapterRef | None,
    request_id: str,
    origin: Origin,
) -> GenerateRequest:
    completion = replace(body.completion, prompts=(text,), truncate=body.truncate)
    try:
        [prompt], _ = await prompt_tokens(service, completion)
        [sampling] = await sampling_params(service, completion, [len(prompt)], None)
    except InvalidRequest as error:
        if error.param == "prompt":
            text = str(error).replace("prompt must", "inputs must").replace("max_tokens", "max_new_tokens")
            raise type(error)(text, param="inputs") from error
        raise schema.rename_parameter(error, list(value.get("parameters") or {})) from error
    return GenerateRequest(request_id, prompt, sampling, ref, origin)


def _adapter(request: web.Request, service: Service, name: str) -> AdapterRef | None:
    return service.registry.get(name, param=_param(request)).ref if name else None


def _param(request: web.Request) -> str:
    return ADAPTER_HEADER if ADAPTER_HEADER in request.headers else "adapters"


def _openai_form(*, chat: bool) -> dict[str, Any]:
    parameters = {
        **(openai_schema.CHAT if chat else openai_schema.COMPLETION),
        "adapters": SchemaOnly(),
        "stream": Flag(),
    }
    return object_schema(parameters, ["messages" if chat else "prompt"])


ROUTES: Final = (
    Route(
        "POST",
        "/invocations",
        in_lmi_form(invoke),
        "Generate (SageMaker's contract)",
        body={"oneOf": [object_schema(BODY, ["inputs"]), _openai_form(chat=True), _openai_form(chat=False)]},
        headers={ADAPTER_HEADER: {"type": "string"}},
        produces=("application/json", "application/jsonlines"),
    ),
)
