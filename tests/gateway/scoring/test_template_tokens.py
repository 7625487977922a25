"""The tokens that are reserved for a chat template follow what a base model's answers show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.admission.admit import reservation
from gateway.admission.template_tokens import TemplateTokens
from gateway.api.schema import CLASSIFY, RERANK, Call, parse
from gateway.api.scoring import MAX_TEMPLATE_TOKENS, SPECIAL_TOKENS, TEMPLATE_TOKENS, ScoringDialect

CONTEXT = 4096


def rerank(*documents: str, **body: Any) -> Call:
    text = json.dumps({"model": "base", "query": "q", "documents": documents, **body})
    return ScoringDialect(parse(RERANK, text.encode())).call


@pytest.fixture
def templates() -> TemplateTokens:
    return TemplateTokens()


def test_the_smallest_mean_of_an_answer_is_reserved(templates: TemplateTokens) -> None:
    templates.measure("base", rerank("d", "dd"), CONTEXT, 2 * 30 + 1)
    assert templates.bound("base") == 30 + SPECIAL_TOKENS
    templates.measure("base", rerank("d" * 400), CONTEXT, 90)
    assert templates.bound("base") == 30 + SPECIAL_TOKENS
    assert templates.bound("other") == TEMPLATE_TOKENS
    reserved, _ = reservation(rerank("d", "d"), 0, CONTEXT, templates.bound("base"))
    assert reserved == 2 * (2 + 30 + SPECIAL_TOKENS)


@pytest.mark.parametrize("template", [0, 7, 110, 300, MAX_TEMPLATE_TOKENS - SPECIAL_TOKENS])
def test_no_later_answer_has_more_tokens_than_are_reserved(templates: TemplateTokens, template: int) -> None:
    """With a token for each byte, which is the worst case, and with one for four."""
    for length, bytes_a_token in ((1, 1), (200, 4), (50, 1), (3, 1), (900, 4), (900, 1)):
        call = rerank("d" * length, "d" * length)
        used = 2 * (template + -(-(length + 1) // bytes_a_token))
        reserved, _ = reservation(call, 0, CONTEXT, templates.bound("base"))
        assert used <= reserved or length == 1, "only the first answer may have more"
        templates.measure("base", call, CONTEXT, used)


def test_a_longer_template_raises_the_bound_but_not_above_the_most(templates: TemplateTokens) -> None:
    templates.measure("base", rerank("d"), CONTEXT, 10)
    templates.measure("base", rerank("d", "d"), CONTEXT, 2 * 200)
    assert templates.bound("base") == 200 + SPECIAL_TOKENS
    templates.measure("base", rerank("d"), CONTEXT, 3000)
    assert templates.bound("base") == MAX_TEMPLATE_TOKENS


def test_what_shows_no_template_is_not_measured(templates: TemplateTokens) -> None:
    templates.measure("base", rerank("d", truncate_prompt_tokens=4), CONTEXT, 4)
    templates.measure("base", rerank("d"), CONTEXT, 0)
    templates.measure("base", parse(CLASSIFY, b'{"model": "base", "input": "a"}'), CONTEXT, 3)
    assert templates.bound("base") == TEMPLATE_TOKENS
