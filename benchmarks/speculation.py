"""Decode speed with speculation by n-grams beside the same without, in one run, on the demo model.

Texts whose n-grams repeat: eight Python files that are written again with one function renamed, eight lists
that are turned into JSON. Texts that do not repeat: stories drawn at temperature 1. Each round answers the
same requests without speculation and with it, in turns, so that a busy machine is busy for both; the median
round counts. The answers are compared token by token, and a difference ends the benchmark.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.engine.in_process import InProcess
from benchmarks.figure import Figure, compared
from benchmarks.processes import DEMO_MODEL
from worker_engine.protocol import GenerateRequest, SamplingParams

NEW_TOKENS: Final = 160
ROUNDS: Final = 5
STREAMS: Final = (1, 8)
GOAL: Final = 1.2
"""On texts that repeat, at one stream."""
KEPT: Final = 0.97
"""Of the speed without speculation, where nothing repeats."""

NAMES: Final = ("users", "orders", "books", "cities", "songs", "films", "plants", "games")
PEOPLE: Final = (
    ("Anna", "Berlin", "nurse"),
    ("Ben", "Paris", "teacher"),
    ("Carla", "Madrid", "lawyer"),
    ("David", "London", "engineer"),
    ("Eva", "Vienna", "doctor"),
    ("Finn", "Oslo", "pilot"),
    ("Gina", "Rome", "cook"),
    ("Hans", "Zurich", "clerk"),
)
CODE: Final = """def load_{name}(path):
    {name} = []
    with open(path) as handle:
        for line in handle:
            title, size, place = line.strip().split(",")
            {name}.append({{"title": title, "size": int(size), "place": place}})
    return {name}


def average_size({name}):
    total = sum(item["size"] for item in {name})
    return total / len({name})


def by_place({name}):
    groups = {{}}
    for item in {name}:
        groups.setdefault(item["place"], []).append(item)
    return groups
"""


def _edits() -> list[str]:
    return [
        f"# {name}.py\n{code}\n\n# {name}_v2.py: the same file, with by_place called by_location\n{code[:70]}"
        for name in NAMES
        for code in [CODE.format(name=name)]
    ]


def _extractions() -> list[str]:
    texts = []
    for first in range(len(PEOPLE)):
        people = PEOPLE[first:] + PEOPLE[:first]
        lines = "\n".join(f"- {name} lives in {city} and works as a {job}." for name, city, job in people)
        name, city, job = people[0]
        texts.append(f"{lines}\n\nAs JSON:\n{json.dumps({'name': name, 'city': city, 'job': job})}\n")
    return texts


def _stories() -> list[str]:
    return [
        f"This is the story of {name}, who lived in {city} and was a {job}." for name, city, job in PEOPLE
    ]


def figures() -> Iterator[Figure]:
    """Tokens a second with speculation, beside those without, by text and number of streams."""
    engines = {"off": InProcess(DEMO_MODEL), "ngram": InProcess(DEMO_MODEL, speculation="ngram")}
    for text, prompts, temperature in (
        ("code edited", _edits(), 0.0),
        ("list to JSON", _extractions(), 0.0),
        ("story", _stories(), 1.0),
    ):
        for streams in STREAMS:
            yield _figure(engines, text, prompts[:streams], temperature)


def _figure(engines: dict[str, InProcess], text: str, prompts: list[str], temperature: float) -> Figure:
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    before = _counts(engines["ngram"])
    for index in range(ROUNDS + 1):
        answers = {}
        for name in sorted(engines, reverse=bool(index % 2)):
            answers[name], speed, spent = _decode(engines[name], prompts, temperature)
            if index:  # the first round is for the caches, and for what is measured of steps
                speeds[name].append(speed)
                seconds[name].append(spent)
        if answers["off"] != answers["ngram"]:
            raise RuntimeError(f"{text}: speculation changed an answer")
    proposed, right = (now - then for now, then in zip(_counts(engines["ngram"]), before, strict=True))
    spent = statistics.median(b / a for a, b in zip(seconds["off"], seconds["ngram"], strict=True))
    ratios = [b / a for a, b in zip(speeds["off"], speeds["ngram"], strict=True)]
    repeats, streams = temperature == 0, len(prompts)
    plain = statistics.median(speeds["off"])
    return compared(
        "speculation",
        f"{text}, {streams} stream{'s' * (streams > 1)}",
        plain * statistics.median(ratios),
        "tokens/s",
        baseline=plain,
        goal=(GOAL if streams == 1 else None) if repeats else KEPT,
        note=f"answers equal token by token; rounds {', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}; "
        f"{right} of {proposed} guesses right; CPU time a token {spent:.2f} of that without",
    )


def _counts(process: InProcess) -> tuple[int, int]:
    """Guesses verified, and those that were right."""
    speculator = process.engine.speculator
    counts = [] if speculator is None else list(speculator.counts.by_adapter().values())
    return sum(proposed for proposed, _ in counts), sum(right for _, right in counts)


def _decode(
    process: InProcess, prompts: list[str], temperature: float
) -> tuple[dict[str, list[int]], float, float]:
    """Answers by request, and from when each has its first token tokens a second and CPU seconds a token."""
    engine = process.engine
    for index, prompt in enumerate(prompts):
        ids = tuple(process.tokenizer.encode(prompt, add_special_tokens=False))
        params = SamplingParams(NEW_TOKENS, temperature=temperature, seed=index, ignore_eos=True)
        engine.add_request(GenerateRequest(str(index), ids, params), None)
    answers: dict[str, list[int]] = {}
    began = (0.0, 0.0, 0)
    while not engine.idle:
        for delta in engine.step():
            answers.setdefault(delta.request_id, []).extend(delta.token_ids)
        if not began[2] and len(answers) == len(prompts):
            began = (time.perf_counter(), time.process_time(), sum(map(len, answers.values())))
    tokens = sum(map(len, answers.values())) - began[2]
    return answers, tokens / (time.perf_counter() - began[0]), (time.process_time() - began[1]) / tokens
