"""`echo` with `logprobs` and `prompt_logprobs` on a real process, against transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_engine.forward_pass import Forward
from tests.worker_engine.test_generation_api import events
from tests.worker_engine.tiny_model import byte_tokenizer
from tests.worker_process import Worker, run_worker
from worker_engine.text.tokenizer import ChatTokenizer

PROMPT = "the cät sat on the mat, and the dog, and the hat, and so on for more than a page or two. " * 3
IDS = list(byte_tokenizer().encode(PROMPT).ids)


@pytest.fixture(scope="module")
def worker(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    flags = ("--max-num-seqs", "8", "--max-num-batched-tokens", "48")
    folder, root = tmp_path_factory.mktemp("worker"), str(tiny_adapters["all"].parent)
    with run_worker(tiny_model, folder, *flags, "--adapters-dir", root) as worker:
        yield worker


def complete(worker: Worker, **body: object) -> Any:
    values = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 1, "ignore_eos": True}
    status, answer = worker.call("/v1/completions", values | body)
    assert status == 200, answer
    return answer


def reference_logprobs(model: Path, adapter: Path | None) -> torch.Tensor:
    return torch.log_softmax(Forward.load(model, adapter)(IDS)[1].double(), -1)


@pytest.mark.parametrize("name", ["tiny", "all"])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_echo_tells_the_prompts_logprobs_as_lm_eval_reads_them(
    name: str, max_tokens: int, worker: Worker, tiny_model: Path, tiny_adapters: dict[str, Path]
) -> None:
    """The harness sends token ids, and sums `token_logprobs` from a context's end to before the last."""
    wanted = reference_logprobs(tiny_model, tiny_adapters.get(name))
    answer = complete(worker, model=name, prompt=[IDS], echo=True, logprobs=2, max_tokens=max_tokens, seed=1)
    [choice] = answer["choices"]
    told = choice["logprobs"]
    assert {len(values) for values in told.values()} == {len(IDS) + max_tokens}
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    own = [wanted[at, IDS[at + 1]].item() for at in range(len(IDS) - 1)]
    assert told["token_logprobs"][1 : len(IDS)] == pytest.approx(own, abs=1e-4)
    best = [max(top.items(), key=lambda item: item[1])[1] for top in told["top_logprobs"][1 : len(IDS)]]
    assert best == pytest.approx(wanted.max(-1).values[:-1].tolist(), abs=1e-4)
    names = zip(told["tokens"][1:], told["top_logprobs"][1:], strict=True)
    assert all(len(top.keys() - {name}) in (1, 2) and name in top for name, top in names)
    assert choice["text"].startswith(PROMPT)
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset : offset + len(token)] == token
    if max_tokens:
        plain = complete(worker, model=name, logprobs=2, max_tokens=max_tokens)["choices"][0]
        assert choice["text"] == PROMPT + plain["text"]
        assert told["token_logprobs"][len(IDS) :] == pytest.approx(
            plain["logprobs"]["token_logprobs"], abs=1e-4
        )


def test_streams_tell_what_whole_answers_tell(worker: Worker) -> None:
    ask: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 5, "n": 2, "seed": 4}
    whole = complete(worker, **ask)
    chunks = events(complete(worker, **ask, stream=True))
    for index, choice in enumerate(whole["choices"]):
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [x for part in parts if part["logprobs"] for x in part["logprobs"][name]] == values
    assert whole["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert complete(worker, echo=True, max_tokens=0)["choices"][0]["text"] == PROMPT


def test_prompt_logprobs_as_vllm_tells_them(worker: Worker, tiny_model: Path) -> None:
    wanted = reference_logprobs(tiny_model, None)
    answer = complete(worker, prompt_logprobs=3, n=2)
    for choice in answer["choices"]:
        told = choice["prompt_logprobs"]
        assert len(told) == len(IDS)
        assert told[0] is None
        for at, position in enumerate(told[1:]):
            line, token = wanted[at], IDS[at + 1]
            own = next(iter(position.items()))
            assert own[0] == str(token)
            assert own[1]["logprob"] == pytest.approx(line[token].item(), abs=1e-4)
            assert own[1]["rank"] == int((line > line[token]).sum()) + 1
            assert {int(name) for name in position} == {token, *line.topk(3).indices.tolist()}
            assert sorted(item["rank"] for item in position.values())[:3] == [1, 2, 3]
    assert choice["text"] == complete(worker)["choices"][0]["text"]
    assert "prompt_logprobs" not in complete(worker)["choices"][0]


def test_prompt_logprobs_of_a_chat_cover_its_template(worker: Worker) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    status, answer = worker.call("/v1/chat/completions", body | {"prompt_logprobs": 0})
    assert status == 200
    told = answer["prompt_logprobs"]
    assert len(told) == answer["usage"]["prompt_tokens"]
    text = "".join(next(iter(position.values()))["decoded_token"] for position in told[1:])
    assert text == "user: hi\nassistant:"[1:]
    assert all(len(position) == 1 for position in told[1:])
    assert "prompt_logprobs" not in worker.call("/v1/chat/completions", body)[1]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "x", "prompt_logprobs": -1}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "x", "prompt_logprobs": True}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ("/v1/completions", {"prompt": "x" * 513, "max_tokens": 0, "echo": True}, "prompt"),
        ("/v1/chat/completions", {"messages": [], "max_tokens": 0}, "max_tokens"),
    ],
)
def test_bad_fields_are_named(worker: Worker, path: str, body: dict[str, Any], param: str) -> None:
    status, answer = worker.call(path, {"model": "tiny"} | body)
    assert (status, answer["error"]["param"]) == (400, param)


def test_a_whole_context_may_be_scored(worker: Worker) -> None:
    answer = complete(worker, prompt=[7] * 512, echo=True, logprobs=0, max_tokens=0)
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 512
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.model
@pytest.mark.costly("starts a worker of its own")
def test_offsets_with_special_tokens(demo_model: Path, tmp_path: Path) -> None:
    """Ids of special tokens are left out of the text, those written in a prompt's text are not."""
    tokenizer = ChatTokenizer(demo_model)
    text = "<|im_start|>user\nHi thére<|im_end|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    with run_worker(demo_model, tmp_path, "--memory-gib", "0.1") as worker:
        for prompt in (text, ids):
            choice = complete(worker, prompt=prompt, echo=True, logprobs=0, max_tokens=3)["choices"][0]
            told = choice["logprobs"]
            shown = text if prompt == text else "user\nHi thére"
            assert choice["text"].startswith(shown)
            assert len(told["tokens"]) == len(ids) + 3
            assert told["text_offset"][len(ids)] == len(shown)
            assert told["text_offset"][2] == len(shown.partition("user")[0]) + 4
            assert json.dumps(told["tokens"][1]) == '"user"'
