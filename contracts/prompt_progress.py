"""A worker's stream reports how many prompt tokens it has read, so that aborted requests are billed."""

from __future__ import annotations

from typing import Final

PROMPT_PROGRESS_HEADER: Final = "x-graftwork-prompt-progress"
"""A request with this header gets PROMPT_PROGRESS comments in its stream."""
PROMPT_PROGRESS: Final = b": prompt "
"""Prefix of a server-sent comment with OpenAI's `usage` of the prompt, up to the current step."""
