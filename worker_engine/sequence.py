"""One request on its way through the engine."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from worker_engine.adapter_loader import Adapter
from worker_engine.memory_pool import pages_for
from worker_engine.protocol import FinishReason, GenerateRequest
from worker_engine.tokenizer import Detokenizer


@dataclass(eq=False, slots=True)
class Sequence:
    """Prompt and completion of one request, and how far its KV cache has come.

    Attributes:
        token_ids: prompt, then completion.
        num_computed: tokens whose keys and values stand in `pages`.
        rng: source of this request's draws; one per sampled token, so neighbours never shift it.
    """

    request: GenerateRequest
    detokenizer: Detokenizer
    adapter: Adapter | None = None
    token_ids: list[int] = field(init=False)
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)
        self.rng = random.Random(self.request.sampling.seed)  # noqa: S311 - sampling, not secrecy

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_missing_pages(self) -> int:
        """Pages needed, beyond those held, to compute all tokens that exist."""
        return pages_for(len(self.token_ids)) - len(self.pages)
