"""Handler of PyTorch's SageMaker images: a checkpoint and its adapters by transformers and PEFT.

This file is uploaded as `code/inference.py` beside `settings.json`. SageMaker's toolkit imports it in
TorchServe's worker process and calls model_fn once, then input_fn, predict_fn and output_fn for each request.
The control plane does not import it. One process answers one request at a time.

A request is a JSON object of `messages` (with `template`) or `prompt`, of `sampling`, and of `adapter` for
another model than the base model. The answer is a stream of server-sent events: `text`, `finish_reason` and
the tokens so far, or one `error` with `status` and `message`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

torch: Any = import_module("torch")  # the control plane, to which this file belongs, has none

EVENT_STREAM = "text/event-stream"
_SETTINGS = "settings.json"
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_UNFINISHED = "\ufffd"
"""Text of a character whose bytes are not all there yet."""
LEAST_TEMPERATURE = 0.01
"""Lower values overflow the logits; vLLM raises them to this too."""


class RequestError(Exception):
    """The request is wrong; `status` is the HTTP status that it deserves."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Served:
    """The loaded model: `adapters` holds PEFT's name of each adapter by its name in requests."""

    model: Any
    tokenizer: Any
    adapters: dict[str, str]
    context: int
    eos: frozenset[int]


def model_fn(model_dir: str) -> Served:
    """Load the checkpoint and every adapter, by settings.json beside this file."""
    settings = json.loads(Path(__file__).with_name(_SETTINGS).read_text())
    transformers = import_module("transformers")
    source = {"trust_remote_code": settings["trust_remote_code"]}
    source |= {"revision": settings["revision"]} if settings["revision"] else {}
    name, dtype = settings["model"], _DTYPES.get(settings["dtype"], "auto")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **source).to(device).eval()
    eos = model.generation_config.eos_token_id
    # Requests alone say how tokens are chosen, not the checkpoint's generation_config.json.
    model.generation_config = transformers.GenerationConfig()
    adapters = {one: f"adapter_{number}" for number, one in enumerate(sorted(settings["adapters"]))}
    for one, inner in adapters.items():
        folder = settings["adapters"][one]
        if inner == "adapter_0":
            model = import_module("peft").PeftModel.from_pretrained(model, folder, adapter_name=inner)
        else:
            model.load_adapter(folder, adapter_name=inner)
    return Served(
        model.eval(),
        transformers.AutoTokenizer.from_pretrained(name, **source),
        adapters,
        settings["max_model_len"] or model.config.get_text_config().max_position_embeddings,
        frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos]),
    )


def input_fn(data: bytes | str, content_type: str) -> Any:
    """Return the request's JSON value; None if it is no JSON."""
    try:
        return json.loads(data)
    except ValueError:
        return None


def predict_fn(request: Any, served: Served, context: Any) -> str:
    """Answer a request. Every event but the last is sent at once; the last one is returned."""
    answer = _Events(_sender(context))
    try:
        if not isinstance(request, dict):
            raise RequestError("the request is no JSON object")
        _generate(request, served, answer)
    except RequestError as error:
        answer.add({"error": {"status": error.status, "message": str(error)}})
    return answer.last


def output_fn(prediction: str, accept: str) -> tuple[str, str]:
    """Return the last event and the content type."""
    return prediction, EVENT_STREAM


class _Events:
    """Sends each event when the next one is known, since TorchServe wants the last one as the result."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send, self.last = send, ""

    def add(self, value: dict[str, Any]) -> None:
        if self.last:
            self._send(self.last)
        self.last = f"data: {json.dumps(value)}\n\n"


def _sender(context: Any) -> Callable[[str], None]:
    """Return the function that sends a part of the answer to TorchServe's caller."""
    send = import_module("ts.handler_utils.utils").send_intermediate_predict_response
    context.set_response_content_type(0, EVENT_STREAM)
    return lambda text: send([text], context.request_ids, "Result", 200, context)


class _Progress:
    """Tokens of one answer. It is transformers' stopping criterion, which generate calls after each token."""

    def __init__(self, served: Served, sampling: dict[str, Any], prompt: int, events: _Events) -> None:
        self._tokenizer, self._events, self._prompt = served.tokenizer, events, prompt
        self._ends = set(sampling.get("stop_token_ids", ()))
        self._ends |= set() if sampling.get("ignore_eos") else served.eos
        self._stops, self._most = sampling.get("stop", []), sampling["max_tokens"]
        self._tokens: list[int] = []
        self._shown, self._reason = 0, ""

    def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
        self._take(int(ids[0, -1]))
        return torch.full((ids.shape[0],), bool(self._reason), device=ids.device)

    def _take(self, token: int) -> None:
        self._tokens.append(token)
        if token in self._ends:
            self._reason = "stop"
        text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        found = [at for stop in self._stops if (at := text.find(stop, self._shown)) >= 0]
        if found:
            text, self._reason = text[: min(found)], "stop"
        elif not self._reason and len(self._tokens) >= self._most:
            self._reason = "length"
        end = len(text) if self._reason else len(text) - _held(text, self._stops)
        self._events.add(
            {
                "text": text[self._shown : end],
                "finish_reason": self._reason or None,
                "prompt_tokens": self._prompt,
                "completion_tokens": len(self._tokens),
            }
        )
        self._shown = max(self._shown, end)


def _held(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the text's end may belong to an unfinished one or to a stop sequence."""
    if unfinished := len(text) - len(text.rstrip(_UNFINISHED)):
        return unfinished
    most = min(len(text), max(map(len, stops), default=0))
    return next((n for n in range(most, 0, -1) if any(stop.startswith(text[-n:]) for stop in stops)), 0)


def _generate(request: dict[str, Any], served: Served, events: _Events) -> None:
    adapter, sampling = request.get("adapter"), dict(request["sampling"])
    if adapter is not None and adapter not in served.adapters:
        raise RequestError(f"adapter {adapter} not found", 404)
    ids = _prompt(request, served.tokenizer)
    wanted = len(ids) + sampling.setdefault("max_tokens", max(1, served.context - len(ids)))
    if wanted > served.context:
        raise RequestError(
            f"This model's maximum context length is {served.context} tokens. However, you requested "
            f"{wanted} tokens ({len(ids)} in the prompt, {sampling['max_tokens']} in the completion)."
        )
    progress = _Progress(served, sampling, len(ids), events)
    prompt = torch.tensor([ids], device=served.model.device)
    if adapter is not None:
        served.model.set_adapter(served.adapters[adapter])
    base_alone = served.model.disable_adapter() if served.adapters and adapter is None else nullcontext()
    if (seed := sampling.get("seed")) is None:
        torch.seed()
    else:
        torch.manual_seed(seed)
    with torch.inference_mode(), base_alone:
        served.model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            stopping_criteria=[progress],
            **_choice(sampling),
        )


def _choice(sampling: dict[str, Any]) -> dict[str, Any]:
    """Return generate's arguments that say how tokens are chosen."""
    found: dict[str, Any] = {"max_new_tokens": sampling["max_tokens"], "pad_token_id": 0, "do_sample": False}
    if "repetition_penalty" in sampling:
        found["repetition_penalty"] = float(sampling["repetition_penalty"])
    temperature = sampling.get("temperature", 1.0)
    if temperature:
        found |= {
            "do_sample": True,
            "temperature": max(float(temperature), LEAST_TEMPERATURE),
            "top_k": sampling.get("top_k", 0),
        }
        found |= {name: float(sampling[name]) for name in ("top_p", "min_p") if name in sampling}
    return found


def _prompt(request: dict[str, Any], tokenizer: Any) -> list[int]:
    if "messages" not in request:
        return list(tokenizer(request["prompt"]).input_ids)
    options = {"add_generation_prompt": True, **request.get("template", {})}
    try:
        text = tokenizer.apply_chat_template(request["messages"], tokenize=False, **options)
    except Exception as error:
        raise RequestError(f"the chat template refuses the messages: {error}") from error
    # The template has written the special tokens.
    return list(tokenizer(text, add_special_tokens=False).input_ids)
