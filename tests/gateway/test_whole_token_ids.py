"""Token ids of an answer that the gateway makes whole from a stream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.api.test_whole_answer import CITY, worker
from tests.gateway.api.test_whole_answer import test_it_is_what_the_worker_answers_whole as demand_the_same
from tests.worker_process import Worker

__all__ = ["worker"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat", {"n": 2, "seed": 5, "temperature": 1.5}),
        ("chat", {"tools": [CITY], "tool_choice": "required", "max_tokens": 80}),
        ("chat", {"tools": [CITY], "tool_choice": "required", "max_tokens": 8}),
        ("", {"n": 2, "seed": 1}),
        ("", {"echo": True, "truncate_prompt_tokens": 1, "logprobs": 1}),
    ],
)
def test_they_are_what_the_worker_answers_whole(worker: Worker, path: str, body: dict[str, Any]) -> None:
    demand_the_same(worker, path, body | {"return_token_ids": True})
