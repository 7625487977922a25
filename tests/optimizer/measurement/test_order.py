"""Orders of comparisons, their prices, scorers and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.recipes.bundled_prompts import BUNDLED, BundledName
from contracts.recipes.progress import JobError
from contracts.recipes.spec_fields import SpecError, SpecFields
from optimizer.measurement.comparison_order import ComparisonOrder, Quality
from optimizer.measurement.prices import Price
from optimizer.measurement.scorers import demand_expected, scorer
from optimizer.measurement.trace import ARRIVALS, LENGTHS, read_trace
from optimizer.prompt_lines import PromptLine

ARMS = [{"name": "a", "model": "x"}, {"name": "b", "model": "y"}]


def read(**fields: Any) -> ComparisonOrder:
    return ComparisonOrder.read(SpecFields("", {"version": 1, "arms": ARMS, **fields}))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"arms": ARMS[:1]}, "arms must be 2 to 8"),
        ({"arms": [ARMS[0], ARMS[0]]}, "arms must have different names"),
        ({"arms": [ARMS[0], {"name": "b", "model": "y", "flags": ["--port=1"]}]}, "flags --port=1 is set"),
        ({"arms": [ARMS[0], {"name": "b", "model": "y", "color": 1}]}, "arms[1].color is not a known field"),
        ({"load": {"concurrency": [0]}}, "load.concurrency must be a list"),
        ({"load": {"prompts": "p", "trace": "t"}}, "load.trace and prompts exclude each other"),
        (
            {"load": {"prompts": "p", "prompt_set": "question_answering"}},
            "load.prompt_set and prompts exclude",
        ),
        ({"load": {"prompt_set": "none"}}, "load.prompt_set must be question_answering"),
        ({"load": {"adapters": True}}, "load.adapters asks for adapters"),
        ({"load": {"speeds": [1]}}, "load.speeds replays a trace's arrivals: give trace, too"),
        ({"load": {"trace": "t", "speeds": [1], "concurrency": [1]}}, "load.speeds and concurrency exclude"),
        ({"load": {"trace": "t", "speeds": [0]}}, "load.speeds must be a list of different numbers above 0"),
        ({"load": {"trace": "t", "speeds": [2, 2.0]}}, "load.speeds must be a list of different numbers"),
        ({"quality": {"scorer": {"kind": "regex"}}}, "quality.scorer.pattern"),
        ({"quality": {"scorer": {"kind": "json_schema", "schema": 1}}}, "quality.scorer.schema"),
        ({"price": {"hour": 1, "input": 2}}, "price.input and output go together"),
        ({"price": {"hour": 1, "discount": 1}}, "price.discount must be a part of 1"),
        ({"adapters": [{"name": "texts", "folder": "f"}]}, "no adapter may be called texts"),
        ({"adapters": [{"name": "base", "folder": "f"}]}, "no adapter may be called base"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_an_order_that_is_wrong_is_refused_by_its_field(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as refused:
        read(**fields)
    assert told in str(refused.value)


def test_a_bundled_set_is_named_and_bounds_the_answers() -> None:
    load = read(load={"prompt_set": "question_answering"}).load
    assert (load.prompts, load.max_tokens) == (BUNDLED[BundledName.QUESTION_ANSWERING].path, 250)
    assert read(load={"prompt_set": "question_answering", "max_tokens": 8}).load.max_tokens == 8
    assert read().load.max_tokens == 32


def test_both_blended_prices() -> None:
    """Document 004's example of numbers: p50 ITL 20 ms at 8 streams are 400 tokens a second."""
    price = Price(hour=5.76, discount=0.25, input=0.5, output=1.5)
    by_throughput, by_list = price.blended(throughput=8 / 0.020)
    assert by_throughput["per_million"] == pytest.approx(0.75 * 5.76 / (400 * 3600 / 1e6) / 4)
    assert by_list["per_million"] == pytest.approx((3 * 0.5 + 1.5) / 4)
    assert "ITL" in by_throughput["formula"]
    assert price.blended(throughput=None) == [by_list]


def quality(**fields: Any) -> Quality:
    return Quality.read(SpecFields("quality", {"scorer": fields}))


def test_scorers() -> None:
    line = PromptLine(7, text="x", expected=" yes ")
    exact = scorer(quality(kind="exact"))
    pattern = scorer(quality(kind="regex", pattern=r"\b\d+ EUR\b"))
    schema = scorer(quality(kind="json_schema", schema={"type": "object", "required": ["a"]}))
    assert exact is not None
    assert pattern is not None
    assert schema is not None
    assert [exact(line, answer) for answer in ("yes", "no")] == [1.0, 0.0]
    assert [pattern(line, answer) for answer in ("it is 12 EUR.", "twelve")] == [1.0, 0.0]
    assert [schema(line, answer) for answer in ('{"a": 1}', '{"b": 1}', "no json", "[" * 100_000)] == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    assert scorer(quality()) is None
    with pytest.raises(JobError, match="line 8 has no expected"):
        demand_expected([line, PromptLine(8, text="x")])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"kind": "regex", "pattern": "("}, "pattern is not a regular expression"),
        ({"kind": "json_schema", "schema": {"type": "animal"}}, "schema is no JSON schema"),
    ],
)
def test_a_scorer_that_is_none_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        scorer(quality(**fields))


def test_the_bundled_traces_are_read() -> None:
    assert len(read_trace(LENGTHS)) == 512
    arrivals = read_trace(ARRIVALS, arrivals=True)
    assert (arrivals[0].arrival, arrivals[0].prompt, arrivals[0].answer) == (0.0, 374, 44)
    assert (len(arrivals), arrivals[-1].arrival) == (512, 130.483)
    with pytest.raises(JobError, match="has no column arrival_s, by which its requests are replayed"):
        read_trace(LENGTHS, arrivals=True)


def test_a_replay_takes_the_trace_that_tells_arrivals() -> None:
    replayed = read(load={"trace": "bundled", "speeds": [1, 4]}).load
    assert (replayed.trace, replayed.concurrency, replayed.requests) == (ARRIVALS, (), 16)
    assert [level.name for level in replayed.levels] == ["1x", "4x"]
    in_turns = read(load={"trace": "bundled"}).load
    assert (in_turns.trace, in_turns.requests) == (LENGTHS, 1)
    assert [level.name for level in in_turns.levels] == ["1", "4"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n", "has no column context_tokens"),
        ("context_tokens,generated_tokens\n1,2\n1,x\n", "line 3: lengths must be whole numbers"),
        ("context_tokens,generated_tokens\n1,0\n", "line 2: lengths must be 1 or more"),
        ("context_tokens,generated_tokens\n1\n", "line 2: lengths must be whole numbers"),
        ("arrival_s,context_tokens,generated_tokens\n0.5,1,2\n0.4,1,2\n", "line 3: arrival_s must be a"),
        ("arrival_s,context_tokens,generated_tokens\nnow,1,2\n", "line 2: arrival_s must be a number"),
        ("arrival_s,context_tokens,generated_tokens\nnan,1,2\n", "from 0 on"),
        ("context_tokens,generated_tokens,arrival_s\n1,2\n", "got None"),
    ],
)
def test_a_trace_that_is_wrong_is_told_by_line(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(JobError, match=told):
        read_trace(path)


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:9/schema.json", "file:///etc/hostname", "other.json", "#/$defs/none"]
)
def test_a_schema_that_refers_outside_of_itself_is_refused_and_nothing_is_fetched(reference: str) -> None:
    schema = {"type": "object", "properties": {"a": {"items": {"$ref": reference}}}}
    with pytest.raises(SpecError, match="which is not in it"):
        scorer(read(quality={"scorer": {"kind": "json_schema", "schema": schema}}).quality)


def test_a_schema_may_refer_to_itself() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    score = scorer(read(quality={"scorer": {"kind": "json_schema", "schema": schema}}).quality)
    assert score is not None
    line = PromptLine(1, "p")
    assert (score(line, '{"a": 1}'), score(line, '{"a": "x"}')) == (1.0, 0.0)
