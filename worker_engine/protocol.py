"""The engine's input and output: generation requests and token deltas."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field
from typing import Final

from contracts.adapters.pooling import Pooling
from contracts.adapters.reference import AdapterMix, AdapterRef


class FinishReason(enum.StrEnum):
    """Why a generation ended, in OpenAI's terms where they exist."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    ERROR = "error"


class GrammarKind(enum.StrEnum):
    """The language of a grammar's text."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CLIENT = "client"
    """A client's grammar in Lark's or GBNF's notation, which must be validated."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the whole completion must match.

    Attributes:
        text: the JSON schema, regular expression or Lark grammar.
        strict: for a JSON schema: refuse unenforceable keywords instead of ignoring them.
        param: the request field that set it, for error messages; not part of the grammar's identity.
    """

    kind: GrammarKind
    text: str
    strict: bool = True
    param: str = field(default="", compare=False)


GREEDY_TEMPERATURE: Final = 1e-5
"""Temperatures below this select the most likely token."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled and when to stop. Penalties and truncation are vLLM's, in its order.

    Attributes:
        temperature: below `GREEDY_TEMPERATURE` the most likely token is selected.
        top_k: 0 keeps all tokens.
        min_p: lowest probability kept, as a share of the most likely token's.
        seed: None uses a random seed per request.
        choice: index among the request's `n` choices; each has its own random stream.
        stop: strings that end the text; they are included only with `include_stop`.
        min_tokens: tokens before which neither end-of-sequence nor a stop ends the text.
        bad_words: token sequences that are never completed.
        allowed_token_ids: the only tokens that may be chosen; None for all.
        max_tokens: 0 computes the prompt and samples nothing.
        logprobs: None for none, else the number of likely alternatives reported per token.
        prompt_logprobs: the same for the prompt's tokens.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    choice: int = 0
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE


@dataclass(frozen=True, slots=True)
class Origin:
    """A request's tenant and priority, for scheduling and the prefix cache.

    The gateway sets it; clients cannot.

    Attributes:
        tenant: the tenant whose share of the worker is charged; "" counts as a tenant.
        tenant_weight: the tenant's share relative to others'.
        priority: higher goes first; 0 is ordinary.
        cache_salt: requests share computed prefixes only when their salts are equal.
        timeout: seconds from the request's arrival until it is aborted; None for no limit.
    """

    tenant: str = ""
    tenant_weight: float = 1.0
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class ThoughtStart:
    """How a completion's thought begins.

    Attributes:
        opened: the prompt ends inside the thought; else the completion may open one.
        budget: most tokens of the thought, after which its end is forced; None for no bound.
    """

    opened: bool = False
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How a prompt's embedding is made of its last hidden states.

    Attributes:
        normalize: scale the embedding to length 1.
        dimensions: number of the embedding's first numbers that are returned; None for all.
    """

    mode: Pooling = Pooling.LAST
    normalize: bool = True
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to generate: token ids in, token deltas out.

    Attributes:
        pooling: if not None, return the prompt's embedding; `sampling.max_tokens` is then 0. An adapter's own
            mode and normalization replace those given here.
        place: index of this sequence within its request.
        tells_prompt: emit a delta at each step that computes part of the prompt.
        thought: None if nothing of the completion is a thought.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    adapter: AdapterRef | AdapterMix | None = None
    origin: Origin = Origin()
    pooling: PoolingParams | None = None
    place: int = 0
    tells_prompt: bool = False
    thought: ThoughtStart | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities at one position, of the model's own distribution.

    The distribution is the one before penalties, biases, temperature, truncation and grammar.

    Attributes:
        top: the most likely (token id, logprob), best first.
        rank: 1 for the most likely token of the vocabulary; only for prompts, else 0.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """The output of one engine step for one request; the last one carries `finish_reason`.

    Attributes:
        text: new text, never half a UTF-8 character, never part of a stop string.
        completion_tokens: tokens generated so far for this request.
        logprobs: one entry per token id, when requested.
        error: a sentence for the caller, only with `FinishReason.ERROR`, `REFUSED` and `TIMEOUT`.
        prompt_logprobs: of every prompt token but the first, when requested, in the first delta only.
        embedding: float32 [hidden] of length 1, in the only delta of a request for an embedding.
        queued: seconds from the request's arrival until it joined the batch.
        reading: nothing is generated yet; `prompt_tokens` counts those computed by the end of this step.
        reasoning: new text of the thought before the answer; `text` has nothing of it.
        reasoning_tokens: tokens of the thought so far, among `completion_tokens`.
        answer_tokens: of the newest tokens, those that this step found to be the answer's; None for all of
            `token_ids`. They may include tokens of earlier deltas, which might have begun a thought.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...] = field(default=())
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    embedding: array[float] | None = None
    queued: float = field(default=0.0, compare=False)
    reading: bool = False
    reasoning: str = ""
    reasoning_tokens: int = 0
    answer_tokens: int | None = None
