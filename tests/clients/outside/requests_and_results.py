"""Requests that every outside client sends, and how its program reports results. Standard library only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

ACME: Final = "gw_k1_secret1"
SLOW: Final = "gw_k3_secret3"
"""A key that may send one request in any span of seconds."""
TINY: Final = "gw_k4_secret4"
"""A key of few tokens a minute: what it sends is too large at any time."""
WRONG: Final = "gw_k1_wrong"

CITY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Genf"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather", "parameters": CITY, "strict": True},
}
HI: Final[list[dict[str, str]]] = [{"role": "user", "content": "hi"}]
TEXTS: Final = ["hello", "the cat sat", "x"]


def tell(main: Callable[[str], dict[str, Any]]) -> None:
    """Runs a client's program with the base URL of the command line."""
    print(json.dumps(main(sys.argv[1])))


def failure(call: Callable[[], object]) -> dict[str, Any]:
    """The exception that `call` raises: its class, HTTP status and text."""
    try:
        call()
    except Exception as error:
        return {
            "kind": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "text": str(error),
        }
    return {"kind": None, "status": None, "text": ""}
