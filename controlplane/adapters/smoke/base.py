"""The smoke test's request to a copy: one completion with the prompt's log-probabilities."""

from __future__ import annotations

import math
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httpx

from controlplane.errors import RefusedError

PROMPT: Final = (
    "The library opens at nine and closes at six. To borrow a book, show your card at the desk and ask for"
    " the shelf. Question: What do I need to borrow a book? Answer:"
)
"""Plain English, which models of any size have seen most."""
NEW_TOKENS: Final = 16
TIMEOUT: Final = httpx.Timeout(60.0, connect=3.0)


class CopyUnableError(Exception):
    """This copy cannot run the test now; the text says why."""


class GenerationBrokenError(Exception):
    """The copy failed during a request, or returned log-probabilities that are not finite."""


@dataclass(frozen=True, slots=True)
class ScoredCompletion:
    """Natural log-probabilities of the prompt's tokens from the second on, and the generated text."""

    logprobs: tuple[float, ...]
    text: str


class Prober(AbstractContextManager["Prober"], Protocol):
    """Queries one copy with and without the adapter; the end of the block removes it from the copy."""

    def ask(self, *, adapted: bool) -> ScoredCompletion:
        """Request one completion.

        Raises:
            CopyUnableError: the copy does not answer, or not with log-probabilities.
            GenerationBrokenError: the copy reports that the generation failed.
            RefusedError: the copy refuses the adapter itself.
        """


def complete(client: httpx.Client, model: dict[str, Any], *, adapted: bool) -> ScoredCompletion:
    """Request a completion from `/v1/completions`; `model` holds the fields that name the model.

    Raises as `Prober.ask` does.
    """
    body = {
        **model,
        "prompt": PROMPT,
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
        "prompt_logprobs": 0,
        "cache_salt": secrets.token_hex(8),
    }
    try:
        answer = client.post("/v1/completions", json=body)
        value = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise CopyUnableError(f"it does not answer ({error})") from error
    if answer.status_code != 200:
        _refusal(answer.status_code, value, adapted=adapted)
    try:
        [choice] = value["choices"]
        values = [next(iter(position.values()))["logprob"] for position in choice["prompt_logprobs"][1:]]
        logprobs = tuple(float(logprob) for logprob in values)
        text = str(choice["text"])
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise CopyUnableError("its answer has no prompt_logprobs") from error
    if not all(map(math.isfinite, logprobs)):
        raise GenerationBrokenError("its log-probabilities are not finite")
    return ScoredCompletion(logprobs, text)


def _refusal(status: int, value: object, *, adapted: bool) -> None:
    """Raise the error for a failed request; with the adapter it may be the adapter's fault."""
    match value:
        case {"error": {"message": str(message), "code": code}}:
            pass
        case _:
            message, code = "", None
    if adapted and code == "adapter_refused":
        raise RefusedError(f"a worker refused the adapter: {message}")
    if adapted and code == "generation_failed":
        raise GenerationBrokenError(message)
    raise CopyUnableError(f"it returned status {status}: {message}".strip())
