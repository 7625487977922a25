"""docs/parameters.md says what the schemas do."""

from __future__ import annotations

import json

import pytest

from gateway.api import schema as openai_schema
from gateway.errors import BadRequest, UnknownParameter
from tests.parameter_table import GATEWAY, PATH, openai_parameters, render
from worker_engine.errors import InvalidRequest
from worker_engine.errors import UnknownParameter as UnknownToWorker
from worker_engine.openai.schema import check

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
