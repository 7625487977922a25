"""LMI's request body: `inputs`, `parameters`, `adapters`. What it shares with OpenAI's is checked there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contracts.openai.kinds import MAX_TOKENS, Flag, Integer
from worker_engine.errors import InvalidRequest
from worker_engine.openai import schema as openai_schema
from worker_engine.openai.fields import Fields
from worker_engine.openai.origin import FIELDS as ORIGIN_FIELDS
from worker_engine.openai.parameters import Parameter, SchemaOnly, object_schema
from worker_engine.openai.schema import SAMPLING, CompletionRequest

MAX_INPUTS: Final = 128
DEFAULT_MAX_NEW_TOKENS: Final = 30
_RENAMED: Final[Mapping[str, str]] = {
    "max_new_tokens": "max_tokens",
    "stop_sequences": "stop",
    "ignore_eos_token": "ignore_eos",
}
_FLAGS: Final[Mapping[str, Flag]] = {
    "details": Flag(),
    "do_sample": Flag(),
    "return_full_text": Flag(),
    "decoder_input_details": Flag(),
}
_TRUNCATE: Final = Integer(1, MAX_TOKENS)
_ONE: Final = Integer(1, 1)
_SINGLE: Final = ("n", "best_of", "top_n_tokens", "num_beams")
"""Parameters that would ask for several answers; LMI returns the first."""
_PARAMETERS: Final[Mapping[str, Parameter]] = {
    **SAMPLING,
    **{name: SAMPLING[known] for name, known in _RENAMED.items()},
    **_FLAGS,
    "truncate": _TRUNCATE,
    **dict.fromkeys(_SINGLE, _ONE),
}
_ADAPTERS: Final = SchemaOnly(
    {"type": ["string", "array", "null"], "items": {"type": ["string", "null"]}, "maxItems": MAX_INPUTS}
)
BODY: Final[Mapping[str, Parameter]] = {
    "inputs": SchemaOnly(
        {"type": ["string", "array"], "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_INPUTS}
    ),
    "parameters": SchemaOnly(object_schema(_PARAMETERS)),
    "adapters": _ADAPTERS,
    "stream": Flag(),
    "model": SchemaOnly({"type": ["string", "null"]}),
    **{name: SchemaOnly() for name in ORIGIN_FIELDS},
}


@dataclass(frozen=True, slots=True)
class LmiRequest:
    """A request for one completion of each input.

    Attributes:
        several: `inputs` was a list, and so is the answer.
        adapters: names of registered adapters, one for each input; "" is the base model.
        completion: how each is generated; its prompt, model and adapter mean nothing.
        details: the answer tells tokens and finish reason.
        full_text: the answer begins with the input.
        truncate: of a longer input only that many tokens are used, its last ones.
    """

    inputs: tuple[str, ...]
    several: bool
    adapters: tuple[str, ...]
    completion: CompletionRequest
    details: bool
    full_text: bool
    truncate: int | None


def parse(value: Mapping[str, Any], *, header_adapter: str | None) -> LmiRequest:
    """Checks an object that `parse_object` let through.

    Args:
        header_adapter: the adapter that the request's header names; it wins over the body's.

    Raises:
        InvalidRequest: whose `param` names the field at fault.
    """
    fields = Fields(value)
    fields.refuse_others(BODY)
    wanted = f"a string or a list of 1 to {MAX_INPUTS} strings"
    given = fields.get("inputs", None, (str, list), wanted)
    inputs = [given] if isinstance(given, str) else given
    if not 0 < len(inputs) <= MAX_INPUTS or not all(isinstance(item, str) for item in inputs):
        raise fields.wrong("inputs", wanted)
    parameters = Fields(fields.get("parameters", {}, dict, "an object"), "parameters.")
    parameters.refuse_others(_PARAMETERS)
    flag = {name: parameters.read(name, item) for name, item in _FLAGS.items()}
    if flag["decoder_input_details"]:
        raise InvalidRequest(
            "parameters.decoder_input_details is not served: use `prompt` with echo and logprobs",
            param="parameters.decoder_input_details",
        )
    for name in _SINGLE:
        parameters.read(name, _ONE)
    names = body_adapters(value, len(inputs)) if header_adapter is None else (header_adapter,) * len(inputs)
    return LmiRequest(
        inputs=tuple(inputs),
        several=isinstance(given, list),
        adapters=names,
        completion=_completion(value, fields.get("parameters", {}, dict, "an object"), flag["details"]),
        details=flag["details"],
        full_text=flag["return_full_text"],
        truncate=parameters.read("truncate", _TRUNCATE),
    )


def body_adapters(value: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """The names in `adapters`: one for all, or one for each of `count` inputs. Raises InvalidRequest."""
    given = value.get("adapters")
    if given is None or given == []:
        return ("",) * count
    names = [given] * count if isinstance(given, str) else given
    right = isinstance(names, list) and all(name is None or isinstance(name, str) for name in names)
    if not right or len(names) != count:
        raise InvalidRequest(
            f"adapters must be a name, or a list of {count} names, one for each input", param="adapters"
        )
    return tuple(name or "" for name in names)


def _completion(value: Mapping[str, Any], parameters: Mapping[str, Any], details: bool) -> CompletionRequest:
    """The same in OpenAI's words."""
    taken = {name: item for name, item in parameters.items() if name in SAMPLING and item is not None}
    for name, known in _RENAMED.items():
        if (item := parameters.get(name)) is None:
            continue
        if known in taken:
            raise InvalidRequest(
                f"parameters.{name} and parameters.{known} exclude each other", param=f"parameters.{name}"
            )
        taken[known] = item
    stream = value.get("stream")
    body = {"max_tokens": DEFAULT_MAX_NEW_TOKENS} | taken
    if parameters.get("do_sample") is False:
        body["temperature"] = 0.0
    body |= {"model": "-", "prompt": "-", "stream": stream}
    body |= {"logprobs": 0} if details or stream is True else {}
    body |= {name: value[name] for name in ORIGIN_FIELDS if name in value}
    try:
        return openai_schema.check(body, chat=False)
    except InvalidRequest as error:
        raise rename_parameter(error, [name for name in parameters if name in _PARAMETERS]) from error


def rename_parameter(error: InvalidRequest, given: Sequence[str]) -> InvalidRequest:
    """The refusal of an OpenAI parameter, under the name by which it was given in `parameters`."""
    if error.param is None:
        return error
    head = error.param.partition(".")[0]
    name = next((item for item in given if _RENAMED.get(item, item) == head), None)
    if name is None:
        return error
    param = f"parameters.{name}{error.param.removeprefix(head)}"
    return type(error)(str(error).replace(error.param, param, 1), param=param)
