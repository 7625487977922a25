"""Recognises a backend's refusal of a request that exceeds the model's context.

Servers word it in their own ways; clients (litellm, LangChain) rely on OpenAI's text and code.

| server | words |
|---|---|
| the bundled worker, vLLM | This model's maximum context length is 4096 tokens. However, you ... |
| vLLM | 'max_tokens' is too large: 5000. This model's maximum context length is 4096 tokens and ... |
| vLLM | The decoder prompt (length 5000) is longer than the maximum model length of 4096. |
| vLLM | Input length (5000) exceeds model's maximum context length (4096). |
| SGLang | The input (5000 tokens) is longer than the model's context length (4096 tokens). |
| TGI, LMI | `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and ... |
| TGI | `inputs` must have less than 4096 tokens. Given: 5000 |
| llama.cpp | the request exceeds the available context size (4096 tokens) |
"""

from __future__ import annotations

import re
from typing import Final

CODE: Final = "context_length_exceeded"
_KNOWN: Final = "maximum context length is"
_TOO_LONG: Final = tuple(
    re.compile(pattern, re.I | re.S)
    for pattern in (
        r"maximum context length(?: is| of)?\s*\(?(\d+)",
        r"longer than the (?:maximum model length of|model's context length)\s*\(?(\d+)",
        r"inputs` tokens \+ `max_new_tokens` must be <= (\d+)",
        r"`(?:inputs` must have less than|max_new_tokens` must be <=) (\d+)",
        r"exceeds? the (?:available )?context size(?:[^\d]{1,20}(\d+))?",
    )
)


def describe_overflow(text: str, code: object = None) -> str | None:
    """Return the refusal in OpenAI's words; None if the backend refused for another reason.

    Args:
        text: the backend's message.
        code: the backend's error code.
    """
    found = next((match for pattern in _TOO_LONG if (match := pattern.search(text))), None)
    if found is None and code != CODE:
        return None
    limit = found[1] if found is not None else None
    length = f"{limit} tokens" if limit else "shorter"
    return (
        f"This model's {_KNOWN} {length}. However, you requested more. Please reduce the length of the "
        "messages or completion."
    )


def in_openai_words(text: str, code: object = None) -> str | None:
    """Return a refusal in OpenAI's words, followed by the backend's; None if it has another reason."""
    summary = describe_overflow(text, code)
    return text if summary is not None and _KNOWN in text.lower() else summary and f"{summary} ({text})"
