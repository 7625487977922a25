"""The engine's state of one request."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from worker_engine.adapters.adapter import Adapter
from worker_engine.config import PAGE_SIZE
from worker_engine.fairness import Account
from worker_engine.memory_pool import pages_for
from worker_engine.prefix_cache import HashChain
from worker_engine.protocol import FinishReason, GenerateRequest
from worker_engine.readers.base import Reader
from worker_engine.sampling.row import SamplingRow
from worker_engine.text.thinking.base import Thought
from worker_engine.text.tokenizer import Detokenizer


@dataclass(eq=False, slots=True)
class Sequence:
    """Prompt and completion of one request, and the state of its KV cache.

    Attributes:
        token_ids: prompt, then completion.
        num_computed: tokens whose keys and values are in `pages`, or will be after the launched steps.
        num_pending_tokens: tokens that launched steps sample and that are not in `token_ids` yet.
        num_inflight_steps: steps with rows of it that were launched and not collected.
        cached_tokens: prompt tokens found in the prefix cache when it was first admitted.
        chain: hashes of its full pages; the first `num_known_pages` pages are in the prefix cache.
        account: its tenant's account, set when it is queued.
        deadline: on the scheduler's clock, as are all times here; infinite when there is none.
        turn: its round in its tenant's round-robin order, while it waits.
        num_bypassed: sequences admitted while the full batch had no slot for this one's adapter.
        num_held: steps that it has waited for a page that another computes, since the last one became known.
        num_found_pages: the most cached pages found while it waited for more.
        sampling: its sampling state; the engine replaces it with one that knows end tokens and grammar.
        reader: takes hidden states of its prompt; None if nothing reads them.
    """

    request: GenerateRequest
    detokenizer: Detokenizer | Thought
    adapter: Adapter | None = None
    token_ids: list[int] = field(init=False)
    arrived: float = 0.0
    num_computed: int = 0
    num_pending_tokens: int = 0
    num_inflight_steps: int = 0
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
    turn: int = 0
    num_bypassed: int = 0
    num_held: int = 0
    num_found_pages: int = 0
    reader: Reader | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)
        self.sampling = SamplingRow(self.request.sampling, self.request.prompt_token_ids)
        origin = self.request.origin
        self.chain = HashChain(origin.cache_salt, self.adapter.sha256 if self.adapter is not None else "")
        self.deadline = math.inf if origin.timeout is None else self.arrived + origin.timeout

    @property
    def thought(self) -> Thought | None:
        """The detokenizer of a completion that may begin with a thought; else None."""
        return self.detokenizer if isinstance(self.detokenizer, Thought) else None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Number of tokens, including those still on the device."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def next_index(self) -> int:
        """Index within the completion of the next sampled token."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def will_end(self) -> bool:
        """True if the token still on the device is the last one by `max_tokens`."""
        return self.num_pending_tokens > 0 and self.next_index >= self.request.sampling.max_tokens

    @property
    def num_tokens_left(self) -> int:
        """Tokens that may still be generated, by `max_tokens`."""
        return self.request.sampling.max_tokens - self.next_index

    @property
    def generates(self) -> bool:
        """False when the request ends with its prompt."""
        return self.request.sampling.max_tokens > 0

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return self.num_tokens - self.num_computed

    @property
    def num_missing_pages(self) -> int:
        """Pages needed, beyond those held, to compute all existing tokens."""
        return pages_for(self.num_tokens) - len(self.pages)

    def reusable_hashes(self) -> list[bytes]:
        """Return the hashes of full pages that cached pages may replace.

        The last token is always computed, and so is each token whose hidden state a reader takes.
        """
        tokens = len(self.token_ids) - 1
        if self.reader is not None and self.reader.start < self.reader.stop:
            tokens = min(tokens, self.reader.start)
        return self.chain.extend(self.token_ids, tokens // PAGE_SIZE)
