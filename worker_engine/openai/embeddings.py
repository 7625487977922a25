"""POST /v1/embeddings: each input's pooled hidden state."""

from __future__ import annotations

import asyncio
import base64
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import orjson
from aiohttp import web

from contracts.adapters.reference import AdapterMix, AdapterRef
from contracts.openai.parameters import EMBEDDING_FORMATS, EMBEDDINGS, IGNORED, INPUT, TRUNCATE
from worker_engine.choices import merge
from worker_engine.errors import InvalidRequest
from worker_engine.http.routes import SERVICE, Route
from worker_engine.openai.body import parse_object
from worker_engine.openai.context_length import prompt_too_long
from worker_engine.openai.fields import Fields
from worker_engine.openai.generation import adapter_of, origin_of, request_id_of
from worker_engine.openai.origin import parse_origin
from worker_engine.openai.parameters import Parameter, SchemaOnly, object_schema
from worker_engine.openai.prepare import place_of, tokenize
from worker_engine.openai.schema import WHO, Prompt, parse_adapter, read_prompts
from worker_engine.protocol import GenerateRequest, Origin, SamplingParams
from worker_engine.service import Service

PARAMETERS: Final[Mapping[str, Parameter]] = {
    **WHO,
    "input": INPUT,
    "encoding_format": SchemaOnly({"enum": [*EMBEDDING_FORMATS, None]}),
    **EMBEDDINGS,
    **{name: SchemaOnly() for name in IGNORED},
}


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A body after checking.

    Attributes:
        dimensions: number of an embedding's first numbers to return; None for all.
        truncate: as TRUNCATE; None for whole inputs.
        binary: return embeddings as base64 of little-endian float32.
    """

    model: str
    adapter: AdapterRef | AdapterMix | None
    inputs: tuple[Prompt, ...]
    dimensions: int | None
    binary: bool
    truncate: int | None
    origin: Origin


def parse(body: bytes) -> EmbeddingRequest:
    """Raises InvalidRequest whose `param` names the field at fault."""
    value = parse_object(body)
    fields = Fields(value)
    fields.refuse_others(PARAMETERS)
    form = fields.text("encoding_format", "float")
    if form not in EMBEDDING_FORMATS:
        raise fields.wrong("encoding_format", " or ".join(EMBEDDING_FORMATS))
    adapter = parse_adapter(fields)
    return EmbeddingRequest(
        model=fields.text("model"),
        adapter=adapter,
        inputs=_inputs(fields),
        dimensions=fields.read("dimensions", EMBEDDINGS["dimensions"]),
        binary=form == "base64",
        truncate=fields.read("truncate_prompt_tokens", TRUNCATE),
        origin=parse_origin(value, adapter),
    )


def _inputs(fields: Fields) -> tuple[Prompt, ...]:
    inputs = read_prompts(fields, "input", INPUT)
    if "" in inputs:
        raise InvalidRequest(f"input{place_of(inputs, inputs.index(''))} must not be empty", param="input")
    return inputs


async def embeddings(request: web.Request) -> web.Response:
    """POST /v1/embeddings."""
    arrived = time.monotonic()
    service = request.app[SERVICE]
    body = parse(await request.read())
    adapter = adapter_of(service, body.model, body.adapter)
    width = service.model.hidden_size
    if body.dimensions is not None and body.dimensions > width:
        raise InvalidRequest(f"dimensions must be at most {width}, this model's", param="dimensions")
    prompts = await _prompts(service, body.inputs, body.truncate)
    request_id, origin = request_id_of(request), origin_of(request, body.origin)
    sampling, pooling = SamplingParams(max_tokens=0), replace(service.pooling, dimensions=body.dimensions)
    streams = [
        service.generate(
            GenerateRequest(request_id, prompt, sampling, adapter, origin, pooling), arrived=arrived
        )
        for prompt in prompts
    ]
    found: dict[int, array[float]] = {}
    # So many fill the batch; a longer list must not fill the queue, whose limits are for requests.
    async with aclosing(merge(streams, at_once=service.config.max_num_seqs)) as deltas:
        async for index, delta in deltas:
            if delta.embedding is not None:
                found[index] = delta.embedding
    answer = await asyncio.to_thread(_render, body, [found[index] for index in range(len(prompts))], prompts)
    return web.Response(body=answer, content_type="application/json", headers={"x-request-id": request_id})


async def _prompts(service: Service, inputs: Sequence[Prompt], truncate: int | None) -> list[tuple[int, ...]]:
    """Each input's token ids. Raises InvalidRequest, ContextLengthExceeded."""
    room = service.engine.max_model_len
    prompts = await tokenize(service, inputs, "input", truncate=truncate, room=room)
    for index, prompt in enumerate(prompts):
        place = place_of(prompts, index)
        if len(prompt) > room:
            raise prompt_too_long(room, len(prompt), 0, param="input", place=place)
        if not service.engine.fits(len(prompt)):
            pool = service.engine.pool_tokens
            reason = f"This worker's memory holds {pool} tokens; the model itself takes {room}."
            raise prompt_too_long(pool, len(prompt), 0, param="input", place=place, reason=reason)
    return prompts


def _render(
    body: EmbeddingRequest, embeddings: Sequence[array[float]], prompts: Sequence[Sequence[int]]
) -> bytes:
    data = []
    for index, embedding in enumerate(embeddings):
        vector = np.frombuffer(embedding, np.float32)
        shown = base64.b64encode(vector.astype("<f4").tobytes()).decode() if body.binary else vector
        data.append({"object": "embedding", "index": index, "embedding": shown})
    count = sum(map(len, prompts))
    usage = {"prompt_tokens": count, "total_tokens": count}
    answer = {"object": "list", "data": data, "model": body.model, "usage": usage}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


ROUTES: Final = (
    Route(
        "POST",
        "/v1/embeddings",
        embeddings,
        "Embeddings of texts",
        body=object_schema(PARAMETERS, ["model", "input"]),
    ),
)
