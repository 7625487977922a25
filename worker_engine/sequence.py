"""One request on its way through the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from worker_engine.adapters.adapter import Adapter
from worker_engine.fairness import Account
from worker_engine.memory_pool import pages_for
from worker_engine.prefix_cache import HashChain
from worker_engine.protocol import FinishReason, GenerateRequest
from worker_engine.sampling.row import SamplingRow
from worker_engine.tokenizer import Detokenizer


@dataclass(eq=False, slots=True)
class Sequence:
    """Prompt and completion of one request, and how far its KV cache has come.

    Attributes:
        token_ids: prompt, then completion.
        num_computed: tokens whose keys and values stand in `pages`.
        cached_tokens: prompt tokens whose keys and values were found when it first entered the batch.
        chain: hashes of its full pages; the first `num_known_pages` pages are in the prefix cache.
        account: its tenant's, from when it is queued.
        deadline: on the scheduler's clock, as are all times here; infinite when there is none.
        num_bypassed: sequences admitted while this one's turn was held up by its adapter.
        sampling: what its tokens are drawn by; the engine replaces it where ends and a grammar matter.
    """

    request: GenerateRequest
    detokenizer: Detokenizer
    adapter: Adapter | None = None
    token_ids: list[int] = field(init=False)
    arrived: float = 0.0
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    sampling: SamplingRow = field(init=False)
    chain: HashChain = field(init=False)
    num_known_pages: int = 0
    cached_tokens: int = 0
    account: Account = field(init=False)
    deadline: float = field(init=False)
    admitted: float | None = None
    last_token: float | None = None
    num_bypassed: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)
        self.sampling = SamplingRow(self.request.sampling, self.request.prompt_token_ids)
        origin = self.request.origin
        self.chain = HashChain(origin.cache_salt, self.adapter.sha256 if self.adapter is not None else "")
        self.deadline = math.inf if origin.timeout is None else self.arrived + origin.timeout

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
