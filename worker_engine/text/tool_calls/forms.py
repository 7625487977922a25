"""The families' forms, and which of them a checkpoint uses."""

from __future__ import annotations

from typing import Final

from worker_engine.text.tool_calls.base import CallForm

HERMES: Final = CallForm("<tool_call>", "</tool_call>", opening="\n", separator="", closing="\n")
"""Hermes 2 Pro and 3, Qwen 2.5 and 3: <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>."""
MISTRAL: Final = CallForm("[TOOL_CALLS]", "", opening=" [", separator=", ", closing="]")
"""Mistral v0.3, Nemo, Small: [TOOL_CALLS] [{"name": ..., "arguments": {...}}]."""
MISTRAL_NAMED: Final = CallForm("[TOOL_CALLS]", "", opening="", separator="", closing="", naming="[ARGS]")
"""Mistral from Small 3.1 and Magistral on: [TOOL_CALLS]name[ARGS]{...}, once for each call; some of these
models with [CALL_ID] and an id before [ARGS]."""
LLAMA: Final = CallForm(
    "<|python_tag|>", "", opening="", separator="; ", closing="", arguments="parameters", bare=True
)
"""Llama 3.1 to 3.3: {"name": ..., "parameters": {...}}, sometimes behind <|python_tag|>."""


def form_of(template: str, *, knows_tools: bool) -> CallForm | None:
    """The form that a chat template teaches its model, or None when it teaches none that we know.

    Args:
        template: the template's source.
        knows_tools: whether it asks for `tools`.
    """
    if not knows_tools:
        return None
    if HERMES.begin in template:
        return HERMES
    if MISTRAL.begin in template:
        return MISTRAL_NAMED if MISTRAL_NAMED.naming in template else MISTRAL
    return LLAMA if '"parameters"' in template or LLAMA.begin in template else None
