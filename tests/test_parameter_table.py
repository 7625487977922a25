"""docs/parameters.md says what the schemas do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pytest

from contracts.openai import parameters as openai
from contracts.openai.kinds import (
    Arguments,
    Biases,
    CountOrAll,
    Integer,
    Items,
    Kind,
    Number,
    OneOf,
    Options,
    Stops,
)
from gateway.api import schema as openai_schema
from gateway.errors import BadRequest, UnknownParameter
from tests.parameter_table import GATEWAY, PATH, openai_parameters, render
from worker_engine.errors import InvalidRequest
from worker_engine.errors import UnknownParameter as UnknownToWorker
from worker_engine.openai import embeddings
from worker_engine.openai.schema import check, parse

PATHS = {
    "chat": openai_schema.CHAT,
    "completions": openai_schema.COMPLETIONS,
    "embeddings": openai_schema.EMBEDDINGS,
}


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
    "embeddings": {"model": "m", "input": "x"},
}
KINDS: Final = {"chat": openai.CHAT, "completions": openai.COMPLETIONS, "embeddings": openai.EMBEDDINGS}
WORKER: Final[Mapping[str, Callable[[bytes], object]]] = {
    "chat": partial(parse, chat=True),
    "completions": partial(parse, chat=False),
    "embeddings": embeddings.parse,
}


def edges(kind: Kind) -> tuple[list[Any], list[Any]]:
    """Return the values on the bounds of a kind, and those just outside them."""
    if isinstance(kind, Number):
        outside = [kind.low - 0.001, kind.high + 0.001]
        return ([kind.high], [*outside, kind.low]) if kind.open_low else ([kind.low, kind.high], outside)
    if isinstance(kind, Integer):
        return [kind.low, kind.high], [kind.low - 1, kind.high + 1]
    if isinstance(kind, CountOrAll):
        return [-1, 1, kind.high], [-2, 0, kind.high + 1]
    if isinstance(kind, Stops):
        text = "x" * kind.max_length
        return [text, [text] * kind.most, []], ["", text + "x", [text] * (kind.most + 1)]
    if isinstance(kind, Biases):
        full, over = ({str(token): kind.high for token in range(kind.most + more)} for more in (0, 1))
        return [full, {"1": -kind.high}], [over, {"1": kind.high + 1}, {"1": -kind.high - 1}, {"a": 1}]
    if isinstance(kind, OneOf):
        return [], ["other", 1]
    if isinstance(kind, Arguments):
        deep: Any = 1
        for _ in range(kind.max_depth):
            deep = [deep]
        over = {f"x{number}": 1 for number in range(kind.most + 1)}
        long = {"x": "y" * kind.max_bytes}
        return [{}], [over, long, {"x": deep}, {"X": 1}, {"": 1}, *({name: 1} for name in kind.reserved), []]
    if isinstance(kind, Options):
        return [{name: True} for name in kind.names], [{"other": True}, {kind.names[0]: 1}]
    if isinstance(kind, Items):
        item: Any = 1 if kind.kind is int else "x" * (kind.max_length or 1)
        beyond: list[Any] = [[item] * (kind.most + 1), *[[item] * size for size in range(kind.least)]]
        if kind.max_length is not None:
            beyond += [["x" * (kind.max_length + 1)], [""]]
        return [[item] * kind.most, [item] * kind.least], beyond
    return [True, False], [0, "true"]


def sized(endpoint: str) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield structured parameters with values at their limits, and just beyond."""
    if endpoint == "chat":
        message = {"role": "user", "content": "x"}
        yield "messages", [[message] * openai.MAX_MESSAGES], [[message] * (openai.MAX_MESSAGES + 1)]
    elif endpoint == "embeddings":
        yield "input", [["x"] * openai.INPUT.most], [["x"] * (openai.INPUT.most + 1)]
        return
    else:
        yield "prompt", [["x"] * openai.PROMPT.most], [["x"] * (openai.PROMPT.most + 1)]


def refused(read: Callable[[], object]) -> str | None:
    """Return the parameter that a plane refuses, or None if it accepts the body."""
    try:
        read()
    except (BadRequest, InvalidRequest) as error:
        return error.param
    return None


@pytest.mark.parametrize("endpoint", KINDS)
def test_both_planes_accept_each_bound_and_refuse_the_value_outside_it(endpoint: str) -> None:
    def body(name: str, value: Any) -> bytes:
        stream = {"stream": True} if name == "stream_options" else {}
        return json.dumps(BODIES[endpoint] | stream | {name: value}).encode()

    def gateway(name: str, value: Any) -> str | None:
        return refused(partial(openai_schema.parse, PATHS[endpoint], body(name, value)))

    def worker(name: str, value: Any) -> str | None:
        return refused(partial(WORKER[endpoint], body(name, value)))

    shared = {name: edges(kind) for name, kind in KINDS[endpoint].items()}
    narrower = {name: edges(kind) for name, kind in openai.WORKER_BOUNDS.items() if name in shared}
    for plane, kinds in ((gateway, shared), (worker, shared | narrower)):
        for name, accepted, outside in [
            *[(name, *values) for name, values in kinds.items()],
            *sized(endpoint),
        ]:
            for value in accepted:
                assert plane(name, value) is None, (plane.__name__, name, str(value)[:60])
            for value in outside:
                assert plane(name, value) == name, (plane.__name__, name, str(value)[:60])
