"""The bundled question answering prompts: their lengths by the demo model's tokenizer, and their file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from statistics import mean

import pytest
from tokenizers import Tokenizer

from benchmarks.optimization.question_answering import LEAST, MEAN, MOST, SET, content, prompts
from optimizer.prompt_lines import read_lines


def test_the_file_is_the_one_that_rows_and_orders_name() -> None:
    data = SET.path.read_bytes()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (SET.sha256, SET.size)
    lines = read_lines(SET.path)
    assert len(lines) == len({line.text for line in lines}) == SET.lines
    assert {line.max_tokens for line in lines} == {SET.max_tokens} == {250}


def test_prompts_have_the_lengths_of_the_published_workload(demo_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    texts = [json.loads(line)["prompt"] for line in SET.path.read_bytes().splitlines()]
    lengths = [len(tokenizer.encode(text).ids) for text in texts]
    assert (LEAST, MOST, MEAN) == (500, 1000, 622)
    assert LEAST <= min(lengths) < LEAST + 20
    assert MOST - 20 < max(lengths) <= MOST
    assert round(mean(lengths)) == MEAN


@pytest.mark.costly("the demo model's tokenizer counts each sentence that is tried")
def test_the_generator_writes_the_same_file_again(demo_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    assert content(prompts(lambda text: len(tokenizer.encode(text).ids))) == SET.path.read_bytes()
