"""What crosses into the worker: adapter identity, generation requests, token deltas.

Standard library only: the control plane and the gateway import this module and nothing else of the
worker, so neither loads torch.
"""

from __future__ import annotations

import enum
import hashlib
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
"""The two files that make an adapter, as PEFT's `save_pretrained` writes them."""

PROMPT_PROGRESS_HEADER: Final = "x-graftwork-prompt-progress"
"""A request with it gets PROMPT_PROGRESS comments in its stream."""
PROMPT_PROGRESS: Final = b": prompt "
"""Begins a server-sent comment: OpenAI's `usage` of the prompt as far as the step under way reads it."""

_SLUG: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
SLUG_PATTERN: Final = re.compile(_SLUG)
"""Tenant and adapter names: 1-63 lower-case letters, digits and inner hyphens (so never `.`, `_`, `@`)."""
_ENGINE_NAME: Final = re.compile(rf"t_({_SLUG})\.a_({_SLUG})\.v([1-9][0-9]{{0,8}})\.([0-9a-f]{{12}})")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class ProtocolError(ValueError):
    """A message that breaks this protocol; the text names the field and what was expected."""


def adapter_digest(file_sha256: Mapping[str, str]) -> str:
    """Content identity of an adapter: SHA-256 over `<sha256>  <name>\\n` of its files, sorted by name.

    Args:
        file_sha256: hex SHA-256 of each of `ADAPTER_FILES`, by file name.
    """
    lines = "".join(f"{file_sha256[name]}  {name}\n" for name in sorted(ADAPTER_FILES))
    return hashlib.sha256(lines.encode()).hexdigest()


def engine_name(*, tenant: str, adapter: str, version: int, sha256: str) -> str:
    """The immutable name of one adapter version: `t_<tenant>.a_<adapter>.v<n>.<sha12>`."""
    name = f"t_{tenant}.a_{adapter}.v{version}.{sha256[:12]}"
    if _ENGINE_NAME.fullmatch(name) is None:
        raise ProtocolError(
            f"{name!r} is no engine name: tenant and adapter must match {_SLUG}, version >= 1"
        )
    return name


@dataclass(frozen=True, slots=True)
class EngineName:
    """The parts of an engine name."""

    tenant: str
    adapter: str
    version: int
    sha12: str

    @classmethod
    def parse(cls, name: str) -> EngineName:
        """Raises ProtocolError when `name` is not `t_<tenant>.a_<adapter>.v<n>.<sha12>`."""
        match = _ENGINE_NAME.fullmatch(name)
        if match is None:
            raise ProtocolError(f"{name!r} is not of the form t_<tenant>.a_<adapter>.v<n>.<sha12>")
        tenant, adapter, version, sha12 = match.groups()
        return cls(tenant, adapter, int(version), sha12)


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """All that a worker needs to serve an adapter it has never seen: it never calls back.

    Attributes:
        name: engine name, immutable.
        uri: folder that holds `ADAPTER_FILES`: `file:///path/` or `s3://bucket/prefix/`.
        sha256: `adapter_digest` of the files; checked after every fetch.
        rank: largest LoRA rank in the adapter.
    """

    name: str
    uri: str
    sha256: str
    rank: int

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "uri": self.uri, "sha256": self.sha256, "rank": self.rank}

    @classmethod
    def from_dict(cls, value: object) -> AdapterRef:
        """Raises ProtocolError naming the field that is missing, unknown or malformed."""
        if not isinstance(value, Mapping):
            raise ProtocolError(f"adapter must be an object, got {type(value).__name__}")
        if unknown := sorted(set(value) - {"name", "uri", "sha256", "rank"}):
            raise ProtocolError(f"adapter.{unknown[0]} is not a known field")
        texts: dict[str, str] = {}
        for name in ("name", "uri", "sha256"):
            text = value.get(name)
            if not isinstance(text, str) or not text:
                raise ProtocolError(f"adapter.{name} must be a non-empty string, got {text!r}")
            texts[name] = text
        rank = value.get("rank")
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise ProtocolError(f"adapter.rank must be a positive integer, got {rank!r}")
        if _SHA256.fullmatch(texts["sha256"]) is None:
            raise ProtocolError("adapter.sha256 must be 64 lower-case hex digits")
        if EngineName.parse(texts["name"]).sha12 != texts["sha256"][:12]:
            raise ProtocolError("adapter.name does not end with the first 12 digits of adapter.sha256")
        return cls(texts["name"], texts["uri"], texts["sha256"], rank)


MAX_MIX: Final = 8
"""Adapters of one request."""
_MAX_MIX_WEIGHT: Final = 100.0


@dataclass(frozen=True, slots=True)
class AdapterMix:
    """Several adapters with weights as one: the sum of their weighted changes to the base.

    The same as PEFT's `add_weighted_adapter(combination_type="cat")`.

    Attributes:
        members: in the order of their content, so that the order in a request means nothing.
    """

    members: tuple[tuple[AdapterRef, float], ...]

    @property
    def sha256(self) -> str:
        """Content identity: of the members' contents and their weights."""
        lines = "".join(f"{ref.sha256} {weight!r}\n" for ref, weight in self.members)
        return hashlib.sha256(f"mix\n{lines}".encode()).hexdigest()

    @classmethod
    def from_list(cls, value: object) -> AdapterMix:
        """Reads `[{"adapter": ..., "weight": ...}, ...]`; a weight left out is 1.

        Raises ProtocolError naming the field that is missing, unknown or malformed.
        """
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= MAX_MIX:
            raise ProtocolError(f"adapters must be a list of 1 to {MAX_MIX} objects")
        members = [_member(f"adapters[{index}]", item) for index, item in enumerate(value)]
        if len({ref.sha256 for ref, _ in members}) < len(members):
            raise ProtocolError("adapters names the same adapter twice: add up its weights")
        return cls(tuple(sorted(members, key=lambda member: member[0].sha256)))


def _member(where: str, value: object) -> tuple[AdapterRef, float]:
    if not isinstance(value, Mapping) or "adapter" not in value:
        raise ProtocolError(f"{where} must be an object with adapter and weight")
    if unknown := sorted(set(value) - {"adapter", "weight"}):
        raise ProtocolError(f"{where}.{unknown[0]} is not a known field")
    weight = value.get("weight", 1.0)
    right = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not right or not abs(weight) <= _MAX_MIX_WEIGHT:
        raise ProtocolError(f"{where}.weight must be a number up to {_MAX_MIX_WEIGHT:g}, got {weight!r}")
    try:
        return AdapterRef.from_dict(value["adapter"]), float(weight)
    except ProtocolError as error:
        raise ProtocolError(f"{where}.{error}") from error


class FinishReason(enum.StrEnum):
    """Why a generation ended, in OpenAI's words where they exist."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    ERROR = "error"


class GrammarKind(enum.StrEnum):
    """What language a grammar's text is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CLIENT = "client"
    """A client's, in Lark's or GBNF's notation, to be checked."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a completion must match as a whole.

    Attributes:
        text: the JSON schema, regular expression or Lark grammar.
        strict: of a JSON schema: a keyword that cannot be enforced is refused, not left out.
        param: the request's field that asked for it, which makes no other grammar of it.
    """

    kind: GrammarKind
    text: str
    strict: bool = True
    param: str = field(default="", compare=False)


GREEDY_TEMPERATURE: Final = 1e-5
"""Temperatures below this take the most likely token."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop. Penalties and truncation are vLLM's, in its order.

    Attributes:
        temperature: below `GREEDY_TEMPERATURE` the most likely token is taken.
        top_k: 0 keeps all tokens.
        min_p: least probability kept, as a share of the most likely token's.
        seed: None draws a fresh one per request.
        choice: which of a request's `n` choices this is; each has its own random stream.
        stop: strings that end the text; they are shown only with `include_stop`.
        min_tokens: tokens before which neither end-of-sequence nor a stop ends the text.
        bad_words: token sequences that are never completed.
        allowed_token_ids: the only tokens that may be chosen; None for all.
        max_tokens: 0 computes the prompt and draws nothing.
        logprobs: None for none, else how many likely alternatives are told beside each token.
        prompt_logprobs: the same of the prompt's tokens.
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
    """Who asks, and how much it matters: what scheduling and the prefix cache need to know.

    The gateway sets it; clients cannot.

    Attributes:
        tenant: whose share of the worker pays; "" is a tenant like any other.
        tenant_weight: the tenant's share relative to others'.
        priority: higher goes first; 0 is ordinary.
        cache_salt: requests share computed prefixes only when their salts are the same.
        timeout: seconds from the request's arrival after which its answer is useless; None never.
    """

    tenant: str = ""
    tenant_weight: float = 1.0
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None


class Pooling(enum.StrEnum):
    """Which of a prompt's last hidden states make its embedding, in sentence-transformers' words."""

    LAST = "lasttoken"
    MEAN = "mean"
    FIRST = "cls"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to generate: token ids in, token deltas out.

    Attributes:
        pooling: not None asks for the prompt's embedding; `sampling.max_tokens` is then 0.
        place: how many sequences of the same request come before this one.
        tells_prompt: asks for a delta at each step that reads of the prompt.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    adapter: AdapterRef | AdapterMix | None = None
    origin: Origin = Origin()
    pooling: Pooling | None = None
    place: int = 0
    tells_prompt: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one position, of the model's own distribution.

    That is before penalties, biases, temperature, truncation and grammar.

    Attributes:
        top: the most likely (token id, logprob), best first.
        rank: 1 for the most likely token of the vocabulary; only of prompts, else 0.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """What one engine step added to one request; the last one carries `finish_reason`.

    Attributes:
        text: new text, never half a UTF-8 character, never part of a stop string.
        completion_tokens: tokens generated so far for this request.
        logprobs: one entry per token id, when asked for.
        error: a sentence for the caller, only with `FinishReason.ERROR`, `REFUSED` and `TIMEOUT`.
        prompt_logprobs: of every prompt token but the first, when asked for, in the first delta only.
        embedding: float32 [hidden] of length 1, in the only delta of a request that asks for it.
        queued: seconds from the request's arrival to the batch.
        reading: nothing is generated yet: `prompt_tokens` counts what has been read by the end of this step.
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
