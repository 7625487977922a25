"""The model `chat` of a Triton repository: chats and prompts in front of the vLLM backend's model.

Triton applies no chat template. This file is uploaded as `chat/1/model.py` and runs in Triton's Python
backend, in images that also have vLLM, and with it transformers; the control plane does not import it.

A request's `text_input` is a JSON object of `messages` or `prompt`, and of vLLM's `sampling` parameters with
`lora_name`. Each `text_output` is one of `text`, `finish_reason`, `prompt_tokens` and `completion_tokens`.
The use of threads is that of NVIDIA's test model decoupled_bls_stream.
"""

from __future__ import annotations

import json
import threading
from importlib import import_module
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # only in Triton

_OUTPUTS = ["text_output", "finish_reason", "num_input_tokens", "num_output_tokens"]
_FLAGS = [
    "stream",
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
]


class RequestError(Exception):
    """The request is wrong; `code` is Triton's, which decides the HTTP status."""

    def __init__(self, text: str, code: Any) -> None:
        super().__init__(text)
        self.code = code


class TritonPythonModel:
    """Triton's interface."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer. `args` holds the model's configuration as JSON."""
        parameters = json.loads(args["model_config"])["parameters"]
        settings = json.loads(parameters["settings"]["string_value"])
        self._engine, self._adapters = settings["engine"], frozenset(settings["adapters"])
        transformers = import_module("transformers")
        source = {"revision": settings["revision"]} if settings["revision"] else {}
        source["trust_remote_code"] = settings["trust_remote_code"]
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(settings["tokenizer"], **source)
        self._context = settings["max_model_len"]
        if not self._context:
            config = transformers.AutoConfig.from_pretrained(settings["tokenizer"], **source)
            self._context = config.get_text_config().max_position_embeddings

    def execute(self, requests: list[Any]) -> None:
        """Answer each request in a thread of its own, so that vLLM batches them."""
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0]
            sender = request.get_response_sender()
            threading.Thread(target=self._answer, args=(text, sender), daemon=True).start()

    def _answer(self, text: bytes, sender: Any) -> None:
        try:
            self._generate(json.loads(text), sender)
        except RequestError as error:
            _fail(sender, str(error), error.code)
        except Exception as error:
            _fail(sender, f"{type(error).__name__}: {error}", pb_utils.TritonError.INTERNAL)

    def _generate(self, asked: dict[str, Any], sender: Any) -> None:
        sampling = dict(asked["sampling"])
        adapter = sampling.get("lora_name")
        if adapter is not None and adapter not in self._adapters:
            raise RequestError(f"adapter {adapter} not found", pb_utils.TritonError.NOT_FOUND)
        prompt, length = self._prompt(asked)
        wanted = length + sampling.setdefault("max_tokens", max(1, self._context - length))
        if wanted > self._context:
            raise RequestError(
                f"This model's maximum context length is {self._context} tokens. However, you requested "
                f"{wanted} tokens ({length} in the prompt, {sampling['max_tokens']} in the completion).",
                pb_utils.TritonError.INVALID_ARG,
            )
        request = pb_utils.InferenceRequest(
            model_name=self._engine,
            requested_output_names=_OUTPUTS,
            inputs=[
                _text("text_input", prompt),
                _text("sampling_parameters", json.dumps(sampling)),
                *(pb_utils.Tensor(name, np.array([True], dtype=np.bool_)) for name in _FLAGS),
            ],
        )
        responses = request.exec(decoupled=True)
        completion = 0
        for response in responses:
            if response.has_error():
                raise RuntimeError(response.error().message())
            if sender.is_cancelled():
                responses.cancel()
                break
            if not response.output_tensors():
                continue
            text, reason, prompt_tokens, tokens = (_value(response, name) for name in _OUTPUTS)
            completion += int(tokens)
            part = {
                "text": text.decode(),
                "finish_reason": None if reason == b"None" else reason.decode(),
                "prompt_tokens": int(prompt_tokens),
                "completion_tokens": completion,
            }
            output = _text("text_output", json.dumps(part))
            sender.send(pb_utils.InferenceResponse(output_tensors=[output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _prompt(self, asked: dict[str, Any]) -> tuple[str, int]:
        """Return the prompt's text and its number of tokens."""
        if "messages" not in asked:
            return asked["prompt"], len(self._tokenizer(asked["prompt"]).input_ids)
        options = {"add_generation_prompt": True, **asked.get("template", {})}
        try:
            text = self._tokenizer.apply_chat_template(asked["messages"], tokenize=False, **options)
        except Exception as error:
            problem = f"the chat template refuses the messages: {error}"
            raise RequestError(problem, pb_utils.TritonError.INVALID_ARG) from error
        ids, bos = self._tokenizer(text).input_ids, self._tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            # vLLM adds the token that the template has already written.
            text = text.removeprefix(self._tokenizer.bos_token)
            ids = self._tokenizer(text).input_ids
        return text, len(ids)


def _fail(sender: Any, text: str, code: Any) -> None:
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _text(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))


def _value(response: Any, name: str) -> Any:
    return pb_utils.get_output_tensor_by_name(response, name).as_numpy().reshape(-1)[0]
