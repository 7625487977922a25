"""Bodies of scores, reranks and classifications: what is taken, what is refused by name, what is reserved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.openai.scoring import MAX_DOCUMENTS
from gateway.admission.admit import reservation
from gateway.api.schema import CLASSIFY, RERANK, SCORE, parse
from gateway.api.scoring import SPECIAL_TOKENS, TEMPLATE_TOKENS, ScoringDialect
from gateway.errors import BadRequest, MissingParameter, UnknownParameter, UpstreamFailed


def read(path: str, **body: Any) -> ScoringDialect:
    return ScoringDialect(parse(path, json.dumps({"model": "base", **body}).encode()))


@pytest.mark.parametrize(
    "body",
    [
        {"text_1": "q", "text_2": ["a", "b"]},
        {"queries": ["q"], "documents": ["a", "b"]},
        {"queries": "q", "items": ["a", "b"]},
        {"data_1": ["q"], "data_2": ["a", "b"]},
    ],
)
def test_each_form_of_a_score_is_sent_in_the_one_that_all_versions_know(body: dict[str, Any]) -> None:
    call = read(SCORE, **body, use_activation=False, truncate_prompt_tokens=-1).call
    assert call.parameters == {
        "text_1": ["q"],
        "text_2": ["a", "b"],
        "use_activation": False,
        "truncate_prompt_tokens": -1,
    }
    assert not call.streams


def test_documents_may_be_objects() -> None:
    documents = ["a", {"text": "b"}]
    call = read(RERANK, query="q", documents=documents, top_n=1, return_documents=False).call
    assert call.parameters == {"query": "q", "documents": ["a", "b"], "top_n": 1}
    assert read(RERANK, query="q", documents="one").call.parameters["documents"] == ["one"]


@pytest.mark.parametrize(
    ("path", "body", "kind", "param"),
    [
        (SCORE, {}, MissingParameter, "text_1"),
        (SCORE, {"text_1": "q"}, MissingParameter, "text_2"),
        (SCORE, {"data_1": "q"}, MissingParameter, "data_2"),
        (SCORE, {"text_1": "q", "documents": "d"}, BadRequest, "documents"),
        (SCORE, {"text_1": "q", "text_2": "d", "items": "d"}, BadRequest, "items"),
        (SCORE, {"text_1": ["q", "r"], "text_2": ["d", "e", "f"]}, BadRequest, "text_1"),
        (SCORE, {"text_1": "", "text_2": "d"}, BadRequest, "text_1"),
        (SCORE, {"text_1": "q", "text_2": []}, BadRequest, "text_2"),
        (SCORE, {"text_1": "q", "text_2": ["d", 1]}, BadRequest, "text_2"),
        (SCORE, {"text_1": "q", "text_2": {"content": []}}, BadRequest, "text_2"),
        (SCORE, {"text_1": "q", "text_2": ["d"] * (MAX_DOCUMENTS + 1)}, BadRequest, "text_2"),
        (SCORE, {"text_1": "q", "text_2": "d", "stream": True}, UnknownParameter, "stream"),
        (RERANK, {"documents": ["d"]}, MissingParameter, "query"),
        (RERANK, {"query": "q"}, MissingParameter, "documents"),
        (RERANK, {"query": ["q"], "documents": ["d"]}, BadRequest, "query"),
        (RERANK, {"query": "q", "documents": {"text": "d"}}, BadRequest, "documents"),
        (RERANK, {"query": "q", "documents": [{"text": "d", "title": "t"}]}, BadRequest, "documents"),
        (RERANK, {"query": "q", "documents": [{"text": ""}]}, BadRequest, "documents"),
        (RERANK, {"query": "q", "documents": ["d"] * (MAX_DOCUMENTS + 1)}, BadRequest, "documents"),
        (RERANK, {"query": "q", "documents": ["d"], "top_n": -1}, BadRequest, "top_n"),
        (RERANK, {"query": "q", "documents": ["d"], "return_documents": 1}, BadRequest, "return_documents"),
        (RERANK, {"query": "q", "documents": ["d"], "max_tokens_per_doc": 5}, UnknownParameter, None),
        (RERANK, {"query": "q", "documents": ["d"], "cache_salt": "x"}, UnknownParameter, "cache_salt"),
        (CLASSIFY, {}, MissingParameter, "input"),
        (CLASSIFY, {"input": ""}, BadRequest, "input"),
        (CLASSIFY, {"input": ["a", [1]]}, BadRequest, "input"),
        (CLASSIFY, {"input": "a", "use_activation": "yes"}, BadRequest, "use_activation"),
        (CLASSIFY, {"input": "a", "truncate_prompt_tokens": 0}, BadRequest, "truncate_prompt_tokens"),
        (CLASSIFY, {"messages": []}, UnknownParameter, "messages"),
    ],
)
def test_bad_fields_are_named(path: str, body: dict[str, Any], kind: type, param: str | None) -> None:
    with pytest.raises(kind) as caught:
        read(path, **body)
    assert isinstance(caught.value, BadRequest)
    assert param is None or caught.value.param == param


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        # The query is read once for each document.
        (
            RERANK,
            {"query": "q" * 10, "documents": ["d" * 5, "é" * 5]},
            10 + 5 + 10 + 10 + 2 * TEMPLATE_TOKENS,
        ),
        (SCORE, {"text_1": "q" * 10, "text_2": ["d"] * 3}, 3 * (11 + TEMPLATE_TOKENS)),
        (SCORE, {"text_1": ["q", "qq"], "text_2": ["d", "dd"]}, 2 + 4 + 2 * TEMPLATE_TOKENS),
        (CLASSIFY, {"input": ["abc", "d"]}, 4 + 2 * SPECIAL_TOKENS),
        (CLASSIFY, {"input": [[1, 2, 3], [4]]}, 4 + 2 * SPECIAL_TOKENS),
        # No prompt is longer than the context, or than the truncation.
        (RERANK, {"query": "q" * 900, "documents": ["d" * 900, "d"]}, 1000 + 1000),
        (RERANK, {"query": "q", "documents": ["d" * 900] * 2, "truncate_prompt_tokens": 50}, 100),
        (RERANK, {"query": "q", "documents": ["d" * 2000], "truncate_prompt_tokens": -1}, 1000),
    ],
)
def test_an_upper_bound_of_the_prompt_tokens_is_reserved(
    path: str, body: dict[str, Any], tokens: int
) -> None:
    assert reservation(read(path, **body).call, 0, 1000) == (tokens, 0)


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"results": 1}', b'{"results": [1]}', b"x"])
def test_an_answer_of_another_form_is_the_backends_failure(body: bytes) -> None:
    dialect = read(RERANK, query="q", documents=["d"], return_documents=False)
    with pytest.raises(UpstreamFailed, match="/v1/rerank"):
        dialect.whole(body)
