"""Quality of each arm: on held-out texts, on the original's answers, and by the order's scorer.

The original answers the order's prompts greedily, also with each adapter. Every arm then reads these answers,
so that all are measured on the same tokens. `identical` counts answers that equal the original's exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contracts.adapters.reference import AdapterRef
from optimizer.measurement.arm_process import ArmProcess, ask_all
from optimizer.measurement.comparison_order import Adapter, Quality, Scoring
from optimizer.measurement.divergence import Passage, Reading, kl, read_all
from optimizer.measurement.rounds import percentile
from optimizer.measurement.scorers import Scorer, demand_expected, scorer
from optimizer.measurement.statistics import FAMILY_LEVEL, judged_means, least_rounds
from optimizer.prompt_lines import BUNDLED_PROMPTS, PromptLine, read_lines
from worker_engine.text.tokenizer import ChatTokenizer

LEAST_PAIRS: Final = 8
"""Fewest texts or prompts for a verdict; more where the family is so large that fewer could show nothing."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A model variant to query: the base (`ref` None) or an adapter, with its prompts."""

    name: str
    ref: AdapterRef | None
    lines: Sequence[PromptLine]

    @property
    def fields(self) -> dict[str, Any]:
        if self.ref is None:
            return {"model": "base"}
        return {"model": self.ref.name, "adapter": self.ref.to_dict()}


@dataclass(frozen=True, slots=True)
class ArmResults:
    """One arm's answers by voice, and readings by corpus ("texts", or a voice's answers)."""

    answers: Mapping[str, Sequence[str]]
    readings: Mapping[str, Sequence[Reading]]


class QualityRun:
    """The order's quality part over all arms."""

    def __init__(
        self,
        quality: Quality,
        prompts: Path | None,
        adapters: Sequence[tuple[Adapter, AdapterRef]],
        model: Path,
    ) -> None:
        """Read all data, before a worker is started.

        Args:
            prompts: the load's; None takes the bundled ones.

        Raises:
            JobError: bad_data.
            SpecError: a malformed scorer.
        """
        self._quality, self._score = quality, scorer(quality)
        self._tokenizer = ChatTokenizer(model)
        own = prompts or BUNDLED_PROMPTS
        self.voices = [Voice("base", None, _few(own, quality.prompts))]
        for adapter, ref in adapters:
            lines = _few(adapter.prompts or own, quality.prompts)
            self.voices.append(Voice(adapter.name, ref, lines))
        if quality.scoring is Scoring.EXACT:
            for voice in self.voices:
                demand_expected(voice.lines)
        texts = _few(quality.texts, quality.most_texts)
        self._texts = [passage for line in texts if (passage := self._text(line.plain))]

    def run(self, arms: Sequence[ArmProcess], told: Callable[[float, str], None]) -> dict[str, Any]:
        """Return the result's `quality`, with the first answers side by side under `samples`."""
        found: dict[str, ArmResults] = {}
        corpora: dict[str, Sequence[Passage]] = {"texts": self._texts}
        for index, arm in enumerate(arms):
            arm.awake()
            try:
                answers = {voice.name: self._answers(arm, voice) for voice in self.voices}
                if not found:
                    corpora |= {
                        voice.name: self._passages(voice, answers[voice.name]) for voice in self.voices
                    }
                readings = {name: self._read(arm, name, passages) for name, passages in corpora.items()}
            finally:
                arm.asleep()
            found[arm.arm.name] = ArmResults(answers, readings)
            told((index + 1) / len(arms), f"read and answered by {arm.arm.name}")
        return self._result(found)

    def _text(self, text: str) -> Passage | None:
        ids = self._tokenizer.encode(text, add_special_tokens=True)[: self._quality.text_tokens]
        return Passage(tuple(ids)) if len(ids) > 1 else None

    def _passages(self, voice: Voice, answers: Sequence[str]) -> list[Passage]:
        """Return the prompts followed by the original's answers; only the answers count."""
        made = []
        for line, answer in zip(voice.lines, answers, strict=True):
            prompt = self._prompt_ids(line)
            ids = (*prompt, *self._tokenizer.encode(answer, add_special_tokens=False))
            if len(ids) > len(prompt) > 0:
                made.append(Passage(ids, len(prompt)))
        return made

    def _prompt_ids(self, line: PromptLine) -> list[int]:
        if line.messages is None:
            return self._tokenizer.encode(line.text or "", add_special_tokens=True)
        return self._tokenizer.encode(self._tokenizer.render_chat(line.messages), add_special_tokens=False)

    def _answers(self, arm: ArmProcess, voice: Voice) -> list[str]:
        def answer(line: PromptLine) -> str:
            most = min(line.max_tokens or self._quality.answer_tokens, self._quality.answer_tokens)
            body = {**voice.fields, "temperature": 0.0, "max_tokens": most}
            if line.messages is None:
                choice = arm.call("/v1/completions", {**body, "prompt": line.text})["choices"][0]
                return str(choice["text"])
            body["messages"] = list(line.messages)
            return str(arm.call("/v1/chat/completions", body)["choices"][0]["message"]["content"] or "")

        return ask_all(answer, voice.lines)

    def _read(self, arm: ArmProcess, corpus: str, passages: Sequence[Passage]) -> list[Reading]:
        who = next((voice.fields for voice in self.voices if voice.name == corpus), {"model": "base"})
        return read_all(arm, passages, who)

    def _result(self, found: Mapping[str, ArmResults]) -> dict[str, Any]:
        names = list(found)
        level = FAMILY_LEVEL / (len(names) - 1)
        return {
            "texts": len(self._texts),
            "prompts": {voice.name: len(voice.lines) for voice in self.voices},
            "kl": "lower bound by the 20 likeliest tokens of each arm, nats a token",
            "level": level,
            "arms": {name: self._arm(found[names[0]], found[name], level) for name in names},
            "samples": list(self._samples(found)),
        }

    def _arm(self, original: ArmResults, found: ArmResults, level: float) -> dict[str, Any]:
        told: dict[str, Any] = {}
        changes: dict[str, Sequence[float]] = {}
        for corpus, readings in found.readings.items():
            if readings:
                mine, theirs = (
                    [item.mean_nll for item in readings],
                    [i.mean_nll for i in original.readings[corpus]],
                )
                told[corpus] = _corpus(original.readings[corpus], readings)
                changes[f"{corpus}: log perplexity"] = [a - b for a, b in zip(mine, theirs, strict=True)]
        for voice in self.voices:
            ours, others = found.answers[voice.name], original.answers[voice.name]
            if ours:
                entry = told.setdefault(voice.name, {})
                entry["identical"] = sum(a == b for a, b in zip(ours, others, strict=True)) / len(ours)
                if self._score is not None:
                    mine, theirs = _scored(self._score, voice, ours), _scored(self._score, voice, others)
                    entry["score"] = math.fsum(mine) / len(mine)
                    changes[f"{voice.name}: score"] = [a - b for a, b in zip(mine, theirs, strict=True)]
        least = max(LEAST_PAIRS, least_rounds(max(len(changes), 1), level))
        enough = {name: values for name, values in changes.items() if len(values) >= least}
        if found is not original:
            verdicts = judged_means(enough, level=level)
            told["changes"] = {name: verdict.to_dict() for name, verdict in verdicts.items()}
        return told

    def _samples(self, found: Mapping[str, ArmResults]) -> Iterator[dict[str, Any]]:
        for voice in self.voices:
            for index, line in enumerate(voice.lines[: self._quality.samples]):
                yield {
                    "voice": voice.name,
                    "line": line.number,
                    "prompt": line.plain,
                    "answers": {name: each.answers[voice.name][index] for name, each in found.items()},
                }


def _few(path: Path, most: int) -> list[PromptLine]:
    """Return the first `most` lines. Raises JobError if a verdict needs more than the file has."""
    return read_lines(path, least=min(LEAST_PAIRS, most))[:most] if most else []


def _scored(score: Scorer, voice: Voice, answers: Sequence[str]) -> list[float]:
    return [score(line, answer) for line, answer in zip(voice.lines, answers, strict=True)]


def _corpus(original: Sequence[Reading], readings: Sequence[Reading]) -> dict[str, Any]:
    tokens = sum(len(reading.own) for reading in readings)
    nll = -math.fsum(value for reading in readings for value in reading.own) / tokens
    divergences = [
        value for mine, theirs in zip(original, readings, strict=True) for value in kl(mine, theirs)
    ]
    before = -math.fsum(value for reading in original for value in reading.own) / tokens
    return {
        "tokens": tokens,
        "perplexity": math.exp(nll),
        "perplexity_ratio": math.exp(nll - before),
        "kl_mean": math.fsum(divergences) / len(divergences),
        "kl_p99": percentile(divergences, 99),
    }
