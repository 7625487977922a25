"""Triton's vLLM backend on the worker: tensors in, and a response for each part of the stream."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from sagemaker_local.containers.engine import Engine, EngineRefused
from sagemaker_local.containers.triton_utils import InferenceResponse, Tensor, TritonError

_UNKNOWN_LORA: Final = "LoRA {} is not supported, we currently support {}"


class EngineResponses:
    """Responses of one request, which another thread reads."""

    def __init__(self, engine: Engine, inputs: Sequence[Tensor], loop: asyncio.AbstractEventLoop) -> None:
        self._queue: queue.SimpleQueue[InferenceResponse | None] = queue.SimpleQueue()
        self._engine = engine
        self._given = {item.name(): item.as_numpy().reshape(-1)[0] for item in inputs}
        self._task = asyncio.run_coroutine_threadsafe(self._run(), loop)

    def __iter__(self) -> Iterator[InferenceResponse]:
        while (response := self._queue.get()) is not None:
            yield response

    def cancel(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._generate()
        except EngineRefused as error:
            text = f"Error generating stream: {error}"
            self._queue.put(InferenceResponse(error=TritonError(text)))
        finally:
            self._queue.put(None)

    async def _generate(self) -> None:
        sampling = json.loads(self._given.get("sampling_parameters", b"{}"))
        name = sampling.pop("lora_name", None)
        if name is not None and name not in self._engine.settings.adapters:
            text = _UNKNOWN_LORA.format(name, list(self._engine.settings.adapters))
            self._queue.put(InferenceResponse(error=TritonError(text)))
            return
        prompt = self._given["text_input"].decode()
        body = {"model": self._engine.name_of(name), "prompt": prompt, **sampling}
        streams = bool(self._given.get("stream", False))
        # Only an answer that does not stream repeats the prompt.
        text = "" if self._given.get("exclude_input_in_output", streams) else prompt
        told, reason, usage = 0, None, dict[str, int]()
        async with self._engine.stream("/v1/completions", body) as values:
            async for value in values:
                usage = value.get("usage") or usage
                for choice in value.get("choices", ()):
                    text, reason = text + (choice.get("text") or ""), choice.get("finish_reason")
                    if streams:
                        self._send(text, reason, usage, told)
                        text, told = "", usage.get("completion_tokens", told)
        if not streams:
            self._send(text, reason, usage, 0)

    def _send(self, text: str, reason: str | None, usage: Mapping[str, int], told: int) -> None:
        tokens, prompt = usage.get("completion_tokens", told) - told, usage.get("prompt_tokens", 0)
        self._queue.put(self._response(text, reason, prompt, tokens))

    def _response(self, text: str, reason: str | None, prompt: int, tokens: int) -> InferenceResponse:
        found = [_text("text_output", text)]
        if self._given.get("return_finish_reason"):
            found.append(_text("finish_reason", str(reason)))
        if self._given.get("return_num_input_tokens"):
            found.append(Tensor("num_input_tokens", np.asarray(prompt, dtype=np.uint32)))
        if self._given.get("return_num_output_tokens"):
            found.append(Tensor("num_output_tokens", np.asarray([tokens], dtype=np.uint32)))
        return InferenceResponse(found)


def _text(name: str, text: str) -> Tensor:
    return Tensor(name, np.asarray([text.encode()], dtype=np.object_))
