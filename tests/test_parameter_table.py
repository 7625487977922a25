"""docs/parameters.md says what the schemas do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pytest

from contracts.openai import bounds
from gateway.api import schema as openai_schema
from gateway.errors import BadRequest, UnknownParameter
from tests.parameter_table import GATEWAY, PATH, openai_parameters, render
from worker_engine.errors import InvalidRequest
from worker_engine.errors import UnknownParameter as UnknownToWorker
from worker_engine.openai.schema import check, parse

PATHS = {"chat": openai_schema.CHAT, "completions": openai_schema.COMPLETIONS}


def rows() -> list[list[str]]:
    """The table's cells, row by row."""
    lines = [line for line in render().splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]


def test_the_page_is_written_from_the_schemas() -> None:
    assert PATH.read_text(encoding="utf-8") == render(), "run python -m tests.parameter_table"


@pytest.mark.parametrize("endpoint", GATEWAY)
def test_every_parameter_of_openais_is_listed(endpoint: str) -> None:
    column = 2 + list(GATEWAY).index(endpoint)
    listed = {row[0] for row in rows() if row[column]}
    assert openai_parameters()[endpoint] <= listed


@pytest.mark.parametrize("endpoint", PATHS)
def test_the_gateway_refuses_what_the_table_calls_refused(endpoint: str) -> None:
    """Each is sent alone: what is known is refused for its value, or for the prompt that is missing."""
    column = 2 + list(GATEWAY).index(endpoint)
    for row in rows():
        body = {row[0]: {"no": ["such"]}} if row[0] == "model" else {"model": "m", row[0]: {"no": ["such"]}}
        with pytest.raises(BadRequest) as caught:
            openai_schema.parse(PATHS[endpoint], json.dumps(body).encode())
        assert (caught.type is UnknownParameter) is (row[column] in ("refused", "")), row


def test_the_worker_does_what_the_table_says() -> None:
    good = {"model": "m", "prompt": "x"}
    for row in rows():
        name, worker = row[0], row[-1]
        if worker == "refused":
            with pytest.raises(UnknownToWorker):
                check(good | {name: 1}, chat=False)
        elif worker == "dropped":
            check(good | {name: 1}, chat=False)
        elif worker.startswith("="):
            check(good | {name: json.loads(worker[1:])}, chat=False)
            with pytest.raises(InvalidRequest):
                check(good | {name: "other"}, chat=False)


BODIES: Final[Mapping[str, dict[str, Any]]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "x"}], "logprobs": True},
    "completions": {"model": "m", "prompt": "x", "echo": True},
}
INTEGERS: Final = {
    "chat": {**bounds.INTEGERS, **bounds.CHAT_INTEGERS},
    "completions": {**bounds.INTEGERS, **bounds.COMPLETION_INTEGERS},
}


def edges(endpoint: str) -> Iterator[tuple[str, Any, bool, bool]]:
    """Yield a parameter, a value on or just outside a bound, and whether gateway and worker accept it."""
    for name, number in bounds.NUMBERS.items():
        yield name, number.low, True, not number.worker_excludes_low
        yield name, number.high, True, True
        yield name, number.low - 0.001, False, False
        yield name, number.high + 0.001, False, False
    for name, integer in INTEGERS[endpoint].items():
        yield name, integer.low, True, True
        yield name, integer.high, True, True
        yield name, integer.low - 1, False, False
        yield name, integer.high + 1, False, integer.gateway_only_high
    for name, size in bounds.LIST_SIZES.items():
        item = "x" if name == "bad_words" else 1
        yield name, [item] * size, True, True
        yield name, [item] * (size + 1), False, False
    sized: dict[str, tuple[int, Any]] = {"stop": (bounds.MAX_STOPS, "x")}
    if endpoint == "chat":
        sized["messages"] = (bounds.MAX_MESSAGES, {"role": "user", "content": "x"})
    else:
        sized["prompt"] = (bounds.MAX_PROMPTS, "x")
    for name, (size, item) in sized.items():
        yield name, [item] * size, True, True
        yield name, [item] * (size + 1), False, False
    for bias in (bounds.MAX_BIAS, -bounds.MAX_BIAS):
        yield "logit_bias", {"1": bias}, True, True
        yield "logit_bias", {"1": bias * 1.001}, False, False
    yield "logit_bias", {str(token): 1 for token in range(bounds.MAX_BIASES)}, True, True
    yield "logit_bias", {str(token): 1 for token in range(bounds.MAX_BIASES + 1)}, False, False


def refused(read: Callable[[], object]) -> str | None:
    """Return the parameter that a plane refuses, or None if it accepts the body."""
    try:
        read()
    except (BadRequest, InvalidRequest) as error:
        return error.param
    return None


@pytest.mark.parametrize("endpoint", PATHS)
def test_both_planes_accept_each_bound_and_refuse_the_value_outside_it(endpoint: str) -> None:
    for name, value, gateway_accepts, worker_accepts in edges(endpoint):
        body = json.dumps(BODIES[endpoint] | {name: value}).encode()
        gateway = refused(partial(openai_schema.parse, PATHS[endpoint], body))
        worker = refused(partial(parse, body, chat=endpoint == "chat"))
        expected = (None if gateway_accepts else name, None if worker_accepts else name)
        assert (gateway, worker) == expected, (name, str(value)[:60])
