"""The API's request parameters and their bounds.

This is an allow-list: a parameter that is not named here is refused. So clients cannot reach anything else
that a backend happens to understand, such as a cache salt, an adapter, a template or a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from contracts.image_tokens import UNKNOWN_MOST, ImageTokens
from contracts.openai import parameters as openai
from contracts.openai import scoring
from contracts.openai.kinds import Integer, Kind, prompts_of
from gateway.api.bounds import Check, messages, one_of, prompts, schema
from gateway.api.images import Image, image_tokens, read_images
from gateway.api.prompts import MAX_SEQUENCES, estimate_tokens, num_prompts
from gateway.api.sse import UsageView
from gateway.errors import BadRequest, MissingParameter, UnknownParameter

MAX_PARTS: Final = 200_000
"""Most lists, objects and strings of a body: each costs a hundred times its one or two bytes."""


def _checks(kinds: Mapping[str, Kind]) -> dict[str, Check]:
    return {name: kind.expected for name, kind in kinds.items()}


_CONSTRAINTS: Final[Mapping[str, Check]] = dict.fromkeys(openai.CONSTRAINTS, schema)
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
SCORE: Final = "/v1/score"
RERANK: Final = "/v1/rerank"
CLASSIFY: Final = "/v1/classify"
SCORING: Final = frozenset({SCORE, RERANK, CLASSIFY})
POOLING: Final = SCORING | {EMBEDDINGS}
"""Endpoints whose answers have no completion tokens and do not stream."""
ALIASES: Final[Mapping[str, str]] = {
    "/score": SCORE,
    "/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/classify": CLASSIFY,
}
"""Other paths of the same endpoints, which vLLM has and Cohere's client calls."""
PARAMETERS: Final[Mapping[str, Mapping[str, Check]]] = {
    CHAT: {
        **_checks(openai.CHAT),
        **_CONSTRAINTS,
        "messages": messages,
        "tools": schema,
        "tool_choice": schema,
    },
    COMPLETIONS: {
        **_checks(openai.COMPLETIONS),
        **_CONSTRAINTS,
        "prompt": prompts(openai.PROMPT),
        "suffix": schema,
        "best_of": Integer(1, 1).expected,
        "adapters": openai.ADAPTERS.expected,
    },
    EMBEDDINGS: {
        **_checks(openai.EMBEDDINGS),
        "input": prompts(openai.INPUT),
        "encoding_format": one_of(*openai.EMBEDDING_FORMATS),
    },
    SCORE: _checks(scoring.SCORE),
    RERANK: _checks(scoring.RERANK),
    CLASSIFY: {**_checks(scoring.CLASSIFY), "input": prompts(scoring.CLASSIFY_INPUT)},
}
UNKNOWN_RULE: Final = ImageTokens(UNKNOWN_MOST)
_OURS: Final = frozenset({"adapter", "adapters", "cache_salt", "tenant", "request_id", "lora_request"})
Dropped = Callable[[str], Collection[str]]
"""Returns the parameters to remove from a request, by the model that the request names."""
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    CHAT: ("messages",),
    COMPLETIONS: ("prompt",),
    EMBEDDINGS: ("input",),
    SCORE: (),
    RERANK: ("query", "documents"),
    CLASSIFY: ("input",),
}


@dataclass(slots=True)
class Call:
    """A checked request.

    Attributes:
        path: the endpoint: CHAT, COMPLETIONS or one of POOLING.
        stream: True if the client wants events.
        parameters: parameters to pass on, without model, stream and stream_options, which the gateway sets.
        view: the usage that a streaming client sees.
        user: the caller's end user, if it is stated; not passed on.
        adapters: the model of each prompt, in order; empty if `model` answers all of them.
        images: the images in a chat's messages.
        image_rule: the base model's bound of an image's tokens; set when the model is resolved.
    """

    path: str
    model: str
    stream: bool
    view: UsageView
    parameters: dict[str, Any]
    user: str = ""
    adapters: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    image_rule: ImageTokens = UNKNOWN_RULE
    _text_estimate: int | None = None

    @property
    def prompt_estimate(self) -> int:
        """Prompt tokens: text by `estimate_tokens`, computed once, and the most that the images can take."""
        if self._text_estimate is None:
            self._text_estimate = estimate_tokens(self.parameters)
        return self._text_estimate + image_tokens(self.images, self.image_rule)

    @property
    def operation(self) -> str:
        """The endpoint's name in usage events: chat, completions, embeddings, score, rerank or classify."""
        return self.path.removeprefix("/v1/").partition("/")[0]

    @property
    def streams(self) -> bool:
        """True if the backend is asked for events.

        Answers that the client wants whole are included, so that usage is known when the client hangs up.
        Requests for log probabilities of the prompt are the exception: vLLM refuses to stream them.
        """
        return self.stream or (self.path not in POOLING and "prompt_logprobs" not in self.parameters)


def drop_nothing(model: str) -> Collection[str]:
    """Drop no parameters, so that every one is checked."""
    return ()


def parse(path: str, body: bytes, dropped: Dropped = drop_nothing, image_hosts: Collection[str] = ()) -> Call:
    """Check a request body for `path`, without the parameters that `dropped` names for its model.

    Args:
        image_hosts: hosts whose images copies may fetch, see `read_images`.

    Raises:
        BadRequest: not a JSON object, or a malformed parameter, named in the message.
        MissingParameter: the model or the prompt is missing.
        UnknownParameter: a parameter that is not on the list.
    """
    model, value = parse_object(body, dropped)
    parameters = check_parameters(PARAMETERS[path], _REQUIRED[path], value)
    _refuse_conflicts(path, parameters)
    stream = bool(parameters.pop("stream", False))
    options = parameters.pop("stream_options", None)
    adapters = tuple(parameters.pop("adapters", ()))
    if options is not None and not stream:
        raise BadRequest("stream_options is only allowed with stream: true.", param="stream_options")
    images = read_images(parameters["messages"], image_hosts) if path == CHAT else ()
    return Call(path, model, stream, _view(options or {}), parameters, user_of(value), adapters, images)


def parse_object(body: bytes, dropped: Dropped) -> tuple[str, dict[str, Any]]:
    """Return the model's name and the remaining parameters. Raises BadRequest, MissingParameter."""
    if len(body) > MAX_PARTS and _too_many_parts(body):
        raise BadRequest(
            f"The body holds more than {MAX_PARTS} lists, objects and strings. Send less of them."
        )
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    model = value.pop("model", None)
    if model is None:
        raise MissingParameter("model is required.", param="model")
    if not isinstance(model, str) or not model:
        raise BadRequest("model must be a non-empty string.", param="model")
    for name in dropped(model):
        value.pop(name, None)
    return model, value


def user_of(value: Mapping[str, Any]) -> str:
    """Return the caller's end user, or "" if it is not stated."""
    user = value.get("user") or value.get("safety_identifier")
    return user if isinstance(user, str) else ""


def check_parameters(
    checks: Mapping[str, Check], required: Sequence[str], value: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters that are not null, each within its bounds.

    Raises:
        BadRequest: a parameter is out of bounds.
        MissingParameter: one of `required` is missing.
        UnknownParameter: a parameter is not on the list.
    """
    parameters: dict[str, Any] = {}
    for name, item in value.items():
        if item is None:
            continue  # clients send null for parameters that they do not use
        check = checks.get(name)
        if check is None:
            if name not in openai.IGNORED:
                raise _unknown_parameter(name)
        elif (expected := check(item)) is not None:
            raise BadRequest(f"{name} must be {expected}.", param=name)
        else:
            parameters[name] = item
    for name in required:
        if name not in parameters:
            raise MissingParameter(f"{name} is required.", param=name)
    return parameters


def _refuse_conflicts(path: str, parameters: Mapping[str, Any]) -> None:
    if path != COMPLETIONS:
        return
    if parameters.get("max_tokens") == 0 and not parameters.get("echo"):
        raise BadRequest("max_tokens may be 0 only with echo: true.", param="max_tokens")
    sequences = num_prompts(parameters) * parameters.get("n", 1)
    if sequences > MAX_SEQUENCES:
        raise BadRequest(
            f"The prompts times n must be at most {MAX_SEQUENCES}. Send fewer prompts in a request.",
            param="prompt",
        )
    if "adapters" in parameters:
        _check_adapters(parameters["adapters"], parameters["prompt"])


def _check_adapters(adapters: list[str], prompt: Any) -> None:
    """Refuse `adapters` without a list of prompts, or if the two lengths differ."""
    prompts = prompts_of(prompt)
    if prompts is not prompt:
        raise BadRequest(
            "adapters needs a list of prompts. Send prompt as a list, or name the adapter in model.",
            param="adapters",
        )
    if len(prompts) != len(adapters):
        raise BadRequest(
            f"adapters needs one name for each prompt: it has {len(adapters)}, prompt has {len(prompts)}.",
            param="adapters",
        )


def _too_many_parts(body: bytes) -> bool:
    """Return True if JSON holds more than MAX_PARTS lists, objects and strings; takes a few passes."""
    if body.count(b"[") + body.count(b"{") + body.count(b'"') <= MAX_PARTS:
        return False
    # A text may be full of brackets, and of escaped quotation marks.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = bare.count(b'"')
    if quotes > 2 * MAX_PARTS:
        return True
    opened = sum(piece.count(b"[") + piece.count(b"{") for piece in bare.split(b'"')[::2])
    return opened + quotes // 2 > MAX_PARTS


def _unknown_parameter(name: str) -> UnknownParameter:
    shown = name[:64]
    if name == "adapters":
        return UnknownParameter(
            f"adapters is served only at {COMPLETIONS}, beside a list of prompts. "
            "Name one adapter in model instead.",
            param=shown,
        )
    if name in _OURS:
        return UnknownParameter(f"{shown} is set by the gateway and cannot be sent.", param=shown)
    return UnknownParameter(f"Unknown parameter: {shown!r}. Remove it from the request.", param=shown)


def _view(options: Mapping[str, bool]) -> UsageView:
    if options.get("continuous_usage_stats") and options.get("include_usage"):
        return UsageView.CONTINUOUS
    return UsageView.FINAL if options.get("include_usage") else UsageView.HIDDEN
