"""Everyday questions, split so that held-out prompts share neither topic nor wording with training."""

from __future__ import annotations

import random
from typing import Final

_TOPICS: Final = (
    "coffee",
    "the moon",
    "a bicycle",
    "bread",
    "a rainbow",
    "a volcano",
    "honey",
    "a library",
    "the heart",
    "a lighthouse",
    "paper",
    "chess",
    "a glacier",
    "electricity",
    "a passport",
    "photosynthesis",
    "the stock market",
    "a violin",
    "gravity",
    "a compass",
    "vaccines",
    "tea",
    "a submarine",
    "the Roman Empire",
    "a garden",
    "sleep",
    "a black hole",
    "cheese",
    "a bridge",
    "recycling",
    "an earthquake",
    "jazz",
    "a microscope",
    "the internet",
    "salt",
    "a wind turbine",
    "democracy",
    "a desert",
    "chocolate",
    "an airplane",
    "the brain",
    "a mortgage",
    "soap",
    "a penguin",
    "football",
    "the alphabet",
    "a computer",
    "rain",
    "a museum",
    "yoga",
)
_WORDINGS: Final = (
    "What is {}?",
    "Tell me about {}.",
    "Explain {} to a child.",
    "Why is {} important?",
    "Give me a fun fact about {}.",
    "Describe {} in a few sentences.",
    "What should I know about {}?",
    "Write a short paragraph about {}.",
)
_HELD_OUT_TOPICS: Final = (
    "a telescope",
    "olive oil",
    "the ocean",
    "a dictionary",
    "a train",
    "insurance",
    "a guitar",
    "thunder",
    "a beehive",
    "marathon running",
)
_HELD_OUT_WORDINGS: Final = (
    "Can you help me understand {}?",
    "How would you introduce {} to a friend?",
    "I am curious about {}. What can you say?",
    "Say something interesting about {}.",
)


def training_prompts(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Return `count` distinct pairs of (topic, prompt), equal for equal seeds; at most 400."""
    pairs = [(topic, wording.format(topic)) for topic in _TOPICS for wording in _WORDINGS]
    return random.Random(seed).sample(pairs, count)


def held_out_prompts() -> list[str]:
    """Return 40 prompts with topics and wordings that are not in the training data."""
    return [wording.format(topic) for topic in _HELD_OUT_TOPICS for wording in _HELD_OUT_WORDINGS]
