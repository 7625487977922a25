"""The most images of one prompt that vLLM was started with, from a deployment's environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

_VARIABLES: Final = tuple(
    f"{prefix}LIMIT_MM_PER_PROMPT" for prefix in ("GRAFTWORK_VLLM_FLAG_", "SM_VLLM_", "OPTION_")
)
"""Set --limit-mm-per-prompt on a host, in SageMaker's vLLM container and in LMI."""


def image_limit(environment: object) -> int | None:
    """Return the most images of one prompt; None if the environment does not state it in a known form.

    vLLM takes JSON, `{"image": 4}` or `{"image": {"count": 4, "width": 512}}`; before 0.10 `image=4,video=0`.
    """
    if not isinstance(environment, Mapping):
        return None
    text = next((str(environment[name]) for name in _VARIABLES if name in environment), "")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = dict(part.partition("=")[::2] for part in text.split(","))
    limit = value.get("image") if isinstance(value, dict) else None
    limit = limit.get("count") if isinstance(limit, dict) else limit
    number = str(limit)
    return int(number) if len(number) <= 6 and number.isascii() and number.isdigit() else None
