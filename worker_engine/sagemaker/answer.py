"""LMI's answers: `generated_text` with its details, whole or a token a line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from worker_engine.errors import RequestError
from worker_engine.protocol import FinishReason, TokenDelta
from worker_engine.sagemaker.errors import lmi_error
from worker_engine.sagemaker.schema import LmiRequest
from worker_engine.text.tokenizer import ChatTokenizer


@dataclass(slots=True)
class _Completion:
    """One input's completion so far."""

    text: str
    tokens: list[dict[str, Any]] = field(default_factory=list)
    last: TokenDelta | None = None


class LmiAnswer:
    """The answer to one invocation; `index` is the input's place in `inputs`."""

    content_type = "application/jsonlines"

    def __init__(self, tokenizer: ChatTokenizer, request: LmiRequest) -> None:
        self._tokenizer, self._request = tokenizer, request
        self._stream = request.completion.stream
        self._completions = [_Completion(text if request.full_text else "") for text in request.inputs]

    def take(self, index: int, delta: TokenDelta) -> bytes:
        completion = self._completions[index]
        completion.text += delta.text
        completion.last = delta
        if self._stream:
            return b"".join(self._lines(index, completion, delta))
        if self._request.details:
            completion.tokens += [
                self._token(token_id, self._tokenizer.decode([token_id], skip_special_tokens=False), delta)
                for token_id in delta.token_ids
            ]
        return b""

    def _lines(self, index: int, completion: _Completion, delta: TokenDelta) -> list[bytes]:
        """A line for the delta's token: its text is what the token lets be shown, often its own."""
        finished = delta.finish_reason is not None
        token_id = delta.token_ids[-1] if delta.token_ids else -1
        line: dict[str, Any] = {
            "index": index,
            "token": self._token(token_id, delta.text, delta),
            "generated_text": completion.text if finished else None,
            "details": None,
        }
        if finished and self._request.details:
            line["details"] = {
                "finish_reason": _reason(delta),
                "seed": self._request.completion.sampling.seed,
                "generated_tokens": delta.completion_tokens,
                "input_length": delta.prompt_tokens,
            }
        return [orjson.dumps(line), b"\n"]

    def _token(self, token_id: int, text: str, delta: TokenDelta) -> dict[str, Any]:
        logprob = next((item.logprob for item in delta.logprobs if item.token_id == token_id), None)
        # JSON has no infinities.
        shown = None if logprob is None else max(logprob, -9999.0)
        return {"id": token_id, "text": text, "logprob": shown}

    def end(self) -> bytes:
        return b""

    def fail(self, error: RequestError) -> bytes:
        return orjson.dumps(lmi_error(error)) + b"\n"

    def whole(self) -> Any:
        """One object, or a list of them where `inputs` was a list."""
        answers = [self._whole(completion) for completion in self._completions]
        return answers if self._request.several else answers[0]

    def _whole(self, completion: _Completion) -> dict[str, Any]:
        answer: dict[str, Any] = {"generated_text": completion.text}
        if self._request.details and completion.last is not None:
            answer["details"] = {
                "finish_reason": _reason(completion.last),
                "generated_tokens": completion.last.completion_tokens,
                "seed": self._request.completion.sampling.seed,
                "prefill": [],
                "tokens": completion.tokens,
            }
        return answer


def _reason(delta: TokenDelta) -> str:
    return str(delta.finish_reason or FinishReason.STOP)
