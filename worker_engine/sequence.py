"""One request on its way through the engine."""

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
from worker_engine.text.tokenizer import Detokenizer


@dataclass(eq=False, slots=True)
class Sequence:
    """Prompt and completion of one request, and how far its KV cache has come.

    Attributes:
        token_ids: prompt, then completion.
        num_computed: tokens whose keys and values stand in `pages`, or will once the launched steps have run.
        num_unread: tokens that a launched step chooses and that are not in `token_ids` yet.
        num_launched: steps with rows of it that were launched and not collected.
        cached_tokens: prompt tokens whose keys and values were found when it first entered the batch.
        chain: hashes of its full pages; the first `num_known_pages` pages are in the prefix cache.
        account: its tenant's, from when it is queued.
        deadline: on the scheduler's clock, as are all times here; infinite when there is none.
        turn: its place in the rounds in which its tenant's requests take turns, while it waits.
        num_bypassed: sequences admitted while this one's turn was held up by its adapter.
        num_held: steps that it has waited for a page that another computes, since the last one became known.
        num_found_pages: the most pages that were known of it while it waited for more.
        sampling: what its tokens are drawn by; the engine replaces it where ends and a grammar matter.
        reader: what takes hidden states of its prompt, if anything does.
    """

    request: GenerateRequest
    detokenizer: Detokenizer
    adapter: Adapter | None = None
    token_ids: list[int] = field(init=False)
    arrived: float = 0.0
    num_computed: int = 0
    num_unread: int = 0
    num_launched: int = 0
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
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """With those that nobody has read yet."""
        return len(self.token_ids) + self.num_unread

    @property
    def next_index(self) -> int:
        """Number, among the completion's tokens, of the one that is chosen next."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def will_end(self) -> bool:
        """Whether the token that nobody has read yet is the last one, whatever it is."""
        return self.num_unread > 0 and self.next_index >= self.request.sampling.max_tokens

    @property
    def num_tokens_left(self) -> int:
        """Tokens that it may still be given, by `max_tokens`."""
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
        """Pages needed, beyond those held, to compute all tokens that exist."""
        return pages_for(self.num_tokens) - len(self.pages)

    def reusable_hashes(self) -> list[bytes]:
        """Of the full pages that another sequence's may stand for.

        The last token is computed whatever is known, and so is each whose hidden state is to be read.
        """
        tokens = len(self.token_ids) - 1
        if self.reader is not None and self.reader.start < self.reader.stop:
            tokens = min(tokens, self.reader.start)
        return self.chain.extend(self.token_ids, tokens // PAGE_SIZE)
