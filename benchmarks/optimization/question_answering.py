"""Writes the bundled question answering prompts: `python -m benchmarks.optimization.question_answering`.

The lengths are those of the workload in AWS's article on the inference optimization toolkit (July 2024):
500 to 1,000 tokens, 622 in the mean, answers of at most 250. Tokens are those of the demo model's tokenizer
(SmolLM2-135M-Instruct), without a chat template; the article counts with Llama 3's. The text is our own.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from contracts.recipes.bundled_prompts import BUNDLED, BundledName

SET: Final = BUNDLED[BundledName.QUESTION_ANSWERING]
PROMPTS: Final = SET.lines
LEAST, MOST, MEAN = 500, 1000, 622
"""Tokens of a prompt."""
_PASSAGES: Final = Path(__file__).with_name("passages.toml")
_TOKENIZER: Final = Path("var/models/smollm2-135m-instruct/tokenizer.json")
_SLOT: Final = re.compile(r"\{(\w+)\}")
_MARGIN: Final = 6
"""Tokens by which a target keeps away from the bounds, since passages consist of whole sentences."""
_STEERED: Final = 12
"""Last prompts, whose lengths correct the mean."""
_NAMES: Final[dict[str, Sequence[str]]] = {
    "first": (
        "Northgate",
        "Alder",
        "Brightwater",
        "Calloway",
        "Drumlin",
        "Eastmoor",
        "Fairlight",
        "Greywell",
    ),
    "second": (
        "Foods",
        "Logistics",
        "Instruments",
        "Textiles",
        "Services",
        "Machines",
        "Trading",
        "Homeware",
    ),
    "given": ("Amara", "Bruno", "Chiara", "Dewi", "Elif", "Farid", "Greta", "Hiro", "Ines", "Jonas"),
    "family": ("Okafor", "Lindqvist", "Moreau", "Tanaka", "Petrov", "Alvarez", "Kowalski", "Mensah", "Byrne"),
    "place": (
        "Porto",
        "Leeds",
        "Gdansk",
        "Turin",
        "Bergen",
        "Graz",
        "Ghent",
        "Cork",
        "Lyon",
        "Malmo",
        "Split",
    ),
    "month": ("January", "March", "April", "May", "June", "August", "September", "October", "November"),
}
_INSTRUCTION: Final = "Read the passage and answer the question in full sentences. Use only the passage."

Count = Callable[[str], int]


def prompts(count: Count) -> Iterator[str]:
    """Yield the prompts; `count` returns the tokens of a text."""
    draw = random.Random(622)
    sentences = tomllib.loads(_PASSAGES.read_text(encoding="utf-8"))
    topics = sorted(sentences["topics"])
    total = 0
    for index in range(PROMPTS):
        target = LEAST + draw.expovariate(1 / (MEAN - LEAST)) if index else MOST
        if index >= PROMPTS - _STEERED:
            target = (MEAN * PROMPTS - total) / (PROMPTS - index)
        topic = sentences["topics"][topics[index % len(topics)]]
        text = _prompt(draw, topic, sentences["general"], target, count)
        total += count(text)
        yield text


def content(found: Iterable[str]) -> bytes:
    """Return the file's content, a JSON object per prompt."""
    lines = [json.dumps({"prompt": text, "max_tokens": SET.max_tokens}) for text in found]
    return ("\n".join(lines) + "\n").encode()


def _prompt(
    draw: random.Random, topic: dict[str, Any], general: Sequence[str], target: float, count: Count
) -> str:
    """Return a prompt of about `target` tokens: an opening, then sentences in a drawn order."""
    company = f"{draw.choice(_NAMES['first'])} {draw.choice(_NAMES['second'])}"
    question = topic["questions"][draw.randrange(len(topic["questions"]))]
    body = [*topic["sentences"], *draw.sample(general, len(general))]
    own = len(topic["sentences"])
    filled = [_filled(draw, sentence, company) for sentence in (topic["title"], topic["opening"], *body)]
    title, opening, rest = filled[0], filled[1], filled[2:]
    target = min(max(target, LEAST + _MARGIN), MOST - _MARGIN)
    chosen = list(range(own))

    def text() -> str:
        # General sentences stand between those of the topic, so that the answer may be anywhere.
        order = sorted(chosen, key=lambda place: (place * 7919) % 101)
        passage = " ".join([opening, *(rest[place] for place in order)])
        return f"{_INSTRUCTION}\n\nPassage about {title}:\n{passage}\n\nQuestion: {question}\nAnswer:"

    for place in range(own, len(rest)):
        before = count(text())
        chosen.append(place)
        if abs(count(text()) - target) > abs(before - target) or count(text()) > MOST:
            chosen.pop()
            if before >= max(target - _MARGIN, LEAST):
                break
    return text()


def _filled(draw: random.Random, sentence: str, company: str) -> str:
    def value(slot: re.Match[str]) -> str:
        match slot[1]:
            case "company":
                return company
            case "person":
                return f"{draw.choice(_NAMES['given'])} {draw.choice(_NAMES['family'])}"
            case "year":
                return str(draw.randrange(1985, 2026))
            case "future":
                return str(draw.randrange(2027, 2031))
            case "pct" | "n2":
                return str(draw.randrange(11, 80))
            case "n1":
                return draw.choice(("two", "three", "four", "five", "six", "seven", "eight", "nine"))
            case "n3":
                return str(draw.randrange(120, 900))
            case name:
                return draw.choice(_NAMES[name])

    return _SLOT.sub(value, sentence)


def main() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_TOKENIZER))
    found = prompts(lambda text: len(tokenizer.encode(text).ids))
    SET.path.write_bytes(content(found))


if __name__ == "__main__":
    main()
