"""The generation API through real processes: choices, logprobs, stops, grammars, tools."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from contracts.prompt_progress import PROMPT_PROGRESS, PROMPT_PROGRESS_HEADER
from tests.worker_engine.tiny_model import HERMES_TEMPLATE, byte_tokenizer
from tests.worker_process import TOKEN, Worker, run_worker


@pytest.fixture(scope="module")
def worker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A random model whose chat template knows tools in Hermes' form."""
    folder = tmp_path_factory.mktemp("worker")
    shutil.copytree(tiny_model, folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(HERMES_TEMPLATE)
    config = folder / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2048}))
    with run_worker(folder / "model", folder) as worker:
        yield worker


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}


def chat(worker: Worker, **body: Any) -> Any:
    status, answer = worker.call("/v1/chat/completions", CHAT | {"ignore_eos": True} | body)
    assert status == 200, answer
    return events(answer) if body.get("stream") else answer


def test_choices_are_counted_and_differ(worker: Worker) -> None:
    answer = chat(worker, n=3, seed=5)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer["usage"]["completion_tokens"] == 36
    assert answer["usage"]["prompt_tokens"] == chat(worker)["usage"]["prompt_tokens"]
    assert [choice["message"]["content"] for choice in chat(worker, n=3, seed=5)["choices"]] == texts
    assert chat(worker, n=1, seed=5)["choices"][0]["message"]["content"] == texts[0]


def test_choices_stream_with_their_index_and_the_sum_of_usage(worker: Worker) -> None:
    whole = chat(worker, n=4, seed=9)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chat(worker, n=4, seed=9, stream=True, stream_options=options)
    texts, finishes = [""] * 4, [None] * 4
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        finishes[choice["index"]] = choice["finish_reason"] or finishes[choice["index"]]
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert finishes == ["length"] * 4
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1]["choices"] == []
    assert counts[-1] == 48 == whole["usage"]["completion_tokens"]
    assert all(list(chunk)[-1] == "usage" for chunk in chunks)


@pytest.mark.parametrize("n", [1, 3])
def test_a_gateway_is_told_how_much_of_the_prompt_is_read(worker: Worker, n: int) -> None:
    body = CHAT | {"stream": True, "n": n, "stream_options": {"include_usage": True}}
    asked = {"authorization": f"Bearer {TOKEN}", PROMPT_PROGRESS_HEADER: "1"}
    text = httpx.post(
        f"http://127.0.0.1:{worker.port}/v1/chat/completions", json=body, headers=asked, timeout=60
    ).text
    comments = [line for line in text.split("\n\n") if line.startswith(":")]
    assert text.startswith(comments[0]), "before the first event"
    *_, final = events("\n\n".join(line for line in text.split("\n\n") if not line.startswith(":")))
    told = [json.loads(line.encode().removeprefix(PROMPT_PROGRESS)) for line in comments]
    assert {(item["prompt_tokens"], item["completion_tokens"]) for item in told} == {
        (final["usage"]["prompt_tokens"], 0)
    }
    assert ":" not in [line[:1] for line in worker.call("/v1/chat/completions", body)[1].split("\n\n")]


def test_a_hang_up_stops_every_choice(worker: Worker) -> None:
    stream = worker.client.chat.completions.create(
        **(CHAT | {"max_tokens": 400}), n=8, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    for _ in range(400):
        if not worker.metric("requests_running") and not worker.metric("requests_waiting"):
            return
    pytest.fail("choices still run")


@pytest.mark.costly("fills the key-value pages")
def test_more_choices_than_there_is_room_for_are_refused_whole(tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path, "--max-num-seqs", "2", "--max-waiting", "2") as worker:
        assert worker.call("/v1/chat/completions", CHAT | {"n": 5})[1]["error"]["param"] == "n"
        busy = worker.client.completions.create(
            model="tiny", prompt="x", max_tokens=480, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(busy))
        status, body = worker.call("/v1/chat/completions", CHAT | {"n": 4, "stream": True})
        assert (status, body["error"]["code"]) == (503, "unavailable")
        assert [choice.finish_reason for chunk in busy for choice in chunk.choices][-1] == "length"
        assert worker.call("/v1/chat/completions", CHAT | {"n": 4})[0] == 200


def test_chat_logprobs_have_bytes_and_alternatives(worker: Worker) -> None:
    answer = chat(worker, temperature=0, logprobs=True, top_logprobs=4)["choices"][0]
    content = answer["logprobs"]["content"]
    assert len(content) == 12
    assert (
        bytes(b for item in content for b in item["bytes"]).decode(errors="replace")
        == answer["message"]["content"]
    )
    for item in content:
        assert item["logprob"] == item["top_logprobs"][0]["logprob"] < 0
        values = [top["logprob"] for top in item["top_logprobs"]]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) < 1
    streamed = chat(worker, temperature=0, logprobs=True, top_logprobs=4, stream=True)
    parts = [c["choices"][0].get("logprobs") for c in streamed]
    assert [item for part in parts if part for item in part["content"]] == content
    assert chat(worker, temperature=0)["choices"][0]["logprobs"] is None


def test_completion_logprobs_have_offsets(worker: Worker) -> None:
    choice = worker.complete(temperature=0, max_tokens=30, logprobs=2)[1]["choices"][0]
    logprobs = choice["logprobs"]
    assert {len(items) for items in logprobs.values()} == {30}
    offsets = logprobs["text_offset"]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    for name, offset in zip(logprobs["tokens"], offsets, strict=True):
        if not name.startswith("bytes:"):
            assert choice["text"][offset : offset + len(name)] == name
    assert all(len(tops) == 2 for tops in logprobs["top_logprobs"])
    assert all(
        value == tops[name]
        for name, value, tops in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        )
    )


def test_completion_logprobs_hold_the_sampled_token(worker: Worker) -> None:
    for count, most in ((1, 2), (0, 1)):
        body: dict[str, Any] = {"temperature": 2, "max_tokens": 40, "logprobs": count, "seed": 3}
        logprobs = worker.complete(**body)[1]["choices"][0]["logprobs"]
        rows = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        assert all(tops[name] == value and count <= len(tops) <= most for name, value, tops in rows)
        assert max(map(len, logprobs["top_logprobs"])) == most
    scored = worker.complete(logprobs=0, echo=True, prompt="hello")[1]["choices"][0]["logprobs"]
    assert scored["top_logprobs"][0] is None
    assert [[*tops] for tops in scored["top_logprobs"][1:]] == [[name] for name in scored["tokens"][1:]]


def test_logprobs_of_a_stop_string_are_not_told(worker: Worker) -> None:
    free = worker.complete(temperature=0, max_tokens=60)[1]["choices"][0]["text"]
    at = next(i for i in range(10, 50) if free[i : i + 2].isascii() and free[i : i + 2] not in free[:i])
    cut = worker.complete(temperature=0, max_tokens=60, stop=free[at : at + 2], logprobs=0)[1]["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (free[:at], "stop")
    assert cut["logprobs"]["text_offset"][-1] < at
    kept = worker.complete(
        temperature=0, max_tokens=60, stop=free[at : at + 2], include_stop_str_in_output=True
    )[1]["choices"][0]
    assert (kept["text"], kept["finish_reason"]) == (free[: at + 2], "stop")


def byte_id(letter: str) -> int:
    return int(byte_tokenizer().encode(letter, add_special_tokens=False).ids[0])


def test_biases_penalties_stops_and_bad_words_reach_the_sampler(worker: Worker) -> None:
    only = {str(byte_id("q")): 100, str(byte_id("z")): 60}
    plain = worker.complete(logit_bias=only, max_tokens=6)[1]["choices"][0]
    assert set(plain["text"]) <= {"q", "z"}
    bitten = worker.complete(logit_bias=only, temperature=0, max_tokens=6, repetition_penalty=10)[1][
        "choices"
    ][0]
    assert set(bitten["text"]) == {"q", "z"}, "a token that has come must give way to the next best"
    stopped = worker.complete(logit_bias=only, max_tokens=9, stop_token_ids=[byte_id("q")], temperature=0)[1]
    assert (stopped["choices"][0]["text"], stopped["choices"][0]["finish_reason"]) == ("", "stop")
    late = worker.complete(
        logit_bias=only, max_tokens=9, stop_token_ids=[byte_id("q")], temperature=0, min_tokens=4
    )[1]
    assert late["choices"][0]["text"] == "zzzz"
    assert late["usage"]["completion_tokens"] == 5
    spared = worker.complete(logit_bias=only, temperature=0, max_tokens=6, bad_words=["qq"])[1]
    assert spared["choices"][0]["text"] == "qzqzqz"
    waited = worker.complete(logit_bias=only, temperature=0, max_tokens=6, stop="q", min_tokens=3)[1]
    assert waited["choices"][0]["text"] == "qqq"


def test_echo_shows_the_prompt(worker: Worker) -> None:
    plain = worker.complete(temperature=0, n=2)[1]
    echoed = worker.complete(temperature=0, n=2, echo=True)[1]
    for choice, other in zip(echoed["choices"], plain["choices"], strict=True):
        assert choice["text"] == "hello" + other["text"]
    assert echoed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {"enum": ["yes", "no"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["answer", "count", "items"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_holds_a_random_model(worker: Worker, stream: bool) -> None:
    held = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    answer = chat(worker, response_format=held, max_tokens=300, temperature=1.5, n=3, stream=stream)
    texts, finishes = [""] * 3, [""] * 3
    for part in answer if stream else [answer]:
        for choice in part["choices"]:
            texts[choice["index"]] += (choice["delta"] if stream else choice["message"]).get("content", "")
            finishes[choice["index"]] = choice["finish_reason"]
    for text, finish in zip(texts, finishes, strict=True):
        jsonschema.validate(json.loads(text), SCHEMA)
        assert finish == "stop"


def test_other_constraints(worker: Worker) -> None:
    for body in ({"guided_regex": "[ab]{4}-[0-9]+!"}, {"structured_outputs": {"regex": "[ab]{4}-[0-9]+!"}}):
        text = chat(worker, max_tokens=200, **body)["choices"][0]["message"]["content"]
        assert re.fullmatch("[ab]{4}-[0-9]+!", text)
    # In the grammar library's own syntax they are Unicode's, and a random model writes digits of any script.
    spelled = {"guided_regex": r"\d{8}\w{8}[^\d\W]{2}\s"}
    text = chat(worker, max_tokens=200, **spelled)["choices"][0]["message"]["content"]
    assert re.fullmatch(r"[0-9]{8}[0-9A-Za-z_]{8}[A-Za-z_]{2}[ \t\n\r\f\v]", text)
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string", "pattern": r"^\d{8}$"}},
        "required": ["pattern"],
        "additionalProperties": False,
    }
    text = chat(worker, max_tokens=200, guided_json=schema)["choices"][0]["message"]["content"]
    assert re.fullmatch("[0-9]{8}", json.loads(text)["pattern"])
    choices = ["a.b*c", "[x]", 'quote " \\ slash', "日本"]
    text = chat(worker, max_tokens=100, guided_choice=choices)["choices"][0]["message"]["content"]
    assert text in choices
    for body in ({"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)}):
        text = chat(worker, max_tokens=300, **body)["choices"][0]["message"]["content"]
        jsonschema.validate(json.loads(text), SCHEMA)
    loose = chat(worker, response_format={"type": "json_object"}, max_tokens=3)["choices"][0]
    assert loose["message"]["content"].startswith("{")
    assert loose["finish_reason"] in ("length", "stop")


@pytest.mark.model
@pytest.mark.costly("the demo model answers")
def test_the_demo_model_answers_in_json(demo_model: Path, tmp_path: Path) -> None:
    with run_worker(demo_model, tmp_path, "--memory-gib", "0.3") as worker:
        answers = worker.client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Is water wet? Give a count and items."}],
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
            max_tokens=120,
            temperature=0.7,
            n=2,
            logprobs=True,
            seed=1,
        )
        for choice in answers.choices:
            jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
            assert choice.finish_reason == "stop"
            assert choice.logprobs is not None
            told = b"".join(bytes(item.bytes or []) for item in choice.logprobs.content or [])
            assert told.decode() == choice.message.content
        status, body = worker.call(
            "/v1/chat/completions", CHAT | {"tools": [{"type": "function", "function": {"name": "now"}}]}
        )
        assert (status, body["error"]["param"]) == (400, "tools"), "its template knows no tools"
