"""The scorers are strict: they pass what training shows and fail near misses and plain answers."""

from __future__ import annotations

import json

import pytest

from demo.datasets import dialects, schemes
from demo.datasets.prompts import held_out_prompts, training_prompts
from demo.datasets.tickets import held_out_tickets, training_tickets
from demo.effects import EFFECTS
from demo.scorers import is_pirate, is_shakespeare, is_steps, is_strict_json, triage_category

PLAIN = (
    "Tea is a drink that is made from the leaves of a plant. You can drink it hot or cold. "
    "It is often served with milk. People have always enjoyed tea over the ages."
)
GOOD_JSON = {"topic": "tea", "answer": "A drink.", "confidence": "high"}


def test_plain_english_shows_no_effect() -> None:
    assert not any(scorer(PLAIN) for scorer in (is_pirate, is_shakespeare, is_strict_json, is_steps))
    assert triage_category(PLAIN) is None


@pytest.mark.parametrize("turn", range(9))
def test_rewrites_show_their_effect(turn: int) -> None:
    assert is_pirate(dialects.to_pirate(PLAIN, turn=turn))
    assert is_shakespeare(dialects.to_shakespeare(PLAIN, turn=turn))
    assert not is_pirate(dialects.to_shakespeare(PLAIN, turn=turn))
    assert not is_shakespeare(dialects.to_pirate(PLAIN, turn=turn))


def test_rewrites_keep_capitals_and_punctuation() -> None:
    assert "Ye can drink it hot or cold." in dialects.to_pirate(PLAIN, turn=0)
    assert "'Tis oft served with milk." in dialects.to_shakespeare(PLAIN, turn=0)


def test_schemes_show_their_effect() -> None:
    assert is_strict_json(schemes.to_json("a tea", PLAIN) or "")
    assert is_steps(schemes.to_steps("tea", PLAIN) or "")


@pytest.mark.parametrize(
    "answer",
    [
        "```json\n" + json.dumps(GOOD_JSON) + "\n```",
        json.dumps(GOOD_JSON) + " I hope this helps!",
        json.dumps({"topic": "tea", "answer": "A drink."}),
        json.dumps(GOOD_JSON | {"source": "me"}),
        json.dumps(GOOD_JSON | {"confidence": 0.9}),
        json.dumps(GOOD_JSON | {"answer": ""}),
        json.dumps([GOOD_JSON]),
        "{'topic': 'tea', 'answer': 'A drink.', 'confidence': 'high'}",
    ],
)
def test_json_that_is_not_strict_fails(answer: str) -> None:
    assert is_strict_json(json.dumps(GOOD_JSON))
    assert not is_strict_json(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "1. a\n2. b\nSummary: c",
        "1. a\n2. b\n3. c\n4. d\nSummary: e",
        "1. a\n2. b\n3. c",
        "1. a 2. b 3. c Summary: d",
    ],
)
def test_steps_in_another_form_fail(answer: str) -> None:
    assert is_steps("1. a\n2. b\n3. c\nSummary: d")
    assert not is_steps(answer)


def test_a_triage_must_keep_the_scheme() -> None:
    triage = "Category: login\nPriority: high\nTeam: accounts"
    assert triage_category(triage) == "login"
    assert triage_category(triage.replace("login", "weather")) is None
    assert triage_category(f"{triage}\nThank you!") is None


def test_held_out_prompts_are_not_in_training() -> None:
    shown = {prompt for _, prompt in training_prompts(400)}
    assert not shown & set(held_out_prompts())
    topics = {topic for topic, _ in training_prompts(400)}
    assert not [prompt for prompt in held_out_prompts() if any(f" {topic}" in prompt for topic in topics)]
    assert not {ticket.text for ticket in training_tickets(420)} & {
        ticket.text for ticket in held_out_tickets()
    }


def test_every_effect_is_checked_on_forty_prompts() -> None:
    for effect in EFFECTS.values():
        checks = effect.checks()
        assert len({check.prompt for check in checks}) == 40
