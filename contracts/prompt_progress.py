"""A worker reports in a stream how much of the prompt it has read, so that the gateway bills hang-ups."""

from __future__ import annotations

from typing import Final

PROMPT_PROGRESS_HEADER: Final = "x-graftwork-prompt-progress"
"""A request with it gets PROMPT_PROGRESS comments in its stream."""
PROMPT_PROGRESS: Final = b": prompt "
"""Begins a server-sent comment: OpenAI's `usage` of the prompt as far as the step under way reads it."""
