"""Measures how many tokens the chat template of each base model adds to a pair of texts.

The gateway does not know a server's template. The mean prompt tokens of an answer's pairs are an upper bound
of the template's, because the texts have tokens too. The smallest such mean is reserved for later pairs.
"""

from __future__ import annotations

from typing import Final

from gateway.api.prompts import pair_bytes
from gateway.api.schema import Call
from gateway.api.scoring import MAX_TEMPLATE_TOKENS, SPECIAL_TOKENS, TEMPLATE_TOKENS, prompt_bound


class TemplateTokens:
    """Most template tokens of one pair, by base model."""

    def __init__(self) -> None:
        self._bounds: Final[dict[str, int]] = {}

    def bound(self, base: str) -> int:
        """Return the tokens to reserve for the template of one pair."""
        return self._bounds.get(base, TEMPLATE_TOKENS)

    def measure(self, base: str, call: Call, max_model_len: int, prompt_tokens: int) -> None:
        """Correct the bound of `base` by the prompt tokens that its backend counted for `call`.

        The bound is lowered to what an answer shows. It is raised, up to MAX_TEMPLATE_TOKENS, if the answer
        has more tokens than are reserved by it: another copy may have a longer template.
        """
        pairs = len(pair_bytes(call.parameters))
        # A truncated prompt may lack a part of the template.
        if not pairs or not prompt_tokens or call.parameters.get("truncate_prompt_tokens", -1) > 0:
            return
        bound = self.bound(base)
        # A few tokens more: texts and template may be joined into other tokens in other pairs.
        shown = min(MAX_TEMPLATE_TOKENS, prompt_tokens // pairs + SPECIAL_TOKENS)
        is_short = prompt_tokens > prompt_bound(call, max_model_len, bound)
        self._bounds[base] = max(bound, shown) if is_short else min(bound, shown)
