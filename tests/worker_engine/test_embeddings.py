"""/v1/embeddings on a real process, as OpenAI's client sees it, against transformers and PEFT."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from safetensors.numpy import load_file

from tests.waiting import eventually
from tests.worker_engine.forward_pass import Forward
from tests.worker_engine.tiny_adapter import adapter_ref, make_adapter
from tests.worker_engine.tiny_model import byte_tokenizer, save_tensors
from tests.worker_process import TOKEN, Worker, run_worker

PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def worker(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A worker with few rows and a short queue."""
    folder = tmp_path_factory.mktemp("worker")
    flags = ("--max-num-seqs", "4", "--max-waiting", "3", "--max-num-batched-tokens", "32")
    root = tiny_adapters["all"].parent
    with run_worker(tiny_model, folder, *flags, "--adapters-dir", str(root)) as worker:
        yield worker


def ask(worker: Worker, given: object, **body: object) -> Any:
    status, answer = worker.call(PATH, {"model": "tiny", "input": given} | body)
    assert status == 200, answer
    return answer


def vectors(answer: Any) -> torch.Tensor:
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return torch.tensor([item["embedding"] for item in answer["data"]])


def unit(vector: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vector, dim=-1)


def byte_ids(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text).ids)


def expected(reference: Forward) -> torch.Tensor:
    """The last token's state of each of TEXTS."""
    return torch.stack([unit(reference(byte_ids(text))[0][-1]) for text in TEXTS])


CHAT = [{"role": "user", "content": "x"}]
TEXTS = ["héllo", "a cat sat on the mat, and then on the hat, and then again on the mat.", "x"]


def test_as_openai_tells_them(worker: Worker, tiny_model: Path) -> None:
    """The client asks for base64 unless told otherwise; numbers and shape are the same in both forms."""
    wanted = expected(Forward.load(tiny_model, None))
    told = worker.client.embeddings.create(model="tiny", input=TEXTS, user="me")
    assert (told.object, told.model) == ("list", "tiny")
    assert [(item.object, item.index) for item in told.data] == [("embedding", i) for i in range(3)]
    assert told.usage.prompt_tokens == told.usage.total_tokens == sum(len(t.encode()) for t in TEXTS)
    found = torch.tensor([item.embedding for item in told.data])
    assert (found - wanted).abs().max() <= 1e-5
    floats = worker.client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    assert torch.equal(torch.tensor([item.embedding for item in floats.data]), found)
    answer = ask(worker, TEXTS[0], encoding_format="base64")
    assert set(answer) == {"object", "data", "model", "usage"}
    assert set(answer["data"][0]) == {"object", "index", "embedding"}
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert struct.unpack("<72f", raw) == pytest.approx(found[0].tolist(), abs=1e-6)


def test_token_ids_alone_and_in_lists(worker: Worker) -> None:
    ids = [byte_ids(text) for text in TEXTS]
    texts = vectors(ask(worker, TEXTS))
    assert torch.allclose(vectors(ask(worker, ids)), texts, atol=1e-5)
    assert torch.allclose(vectors(ask(worker, ids[1])), texts[1:2], atol=1e-5)
    assert torch.allclose(vectors(ask(worker, TEXTS[1])), texts[1:2], atol=1e-5)


def test_dimensions_are_the_first_ones_at_length_one(worker: Worker) -> None:
    whole = vectors(ask(worker, TEXTS))
    short = vectors(ask(worker, TEXTS, dimensions=10))
    assert torch.allclose(short, unit(whole[:, :10]), atol=1e-5)
    assert torch.equal(
        vectors(ask(worker, TEXTS, dimensions=72)).norm(dim=1).round(decimals=5), torch.ones(3)
    )


def test_adapters_change_them_as_in_peft(
    worker: Worker, tiny_model: Path, tiny_adapters: dict[str, Path]
) -> None:
    base = vectors(ask(worker, TEXTS))
    for name in ("all", "rslora"):
        reference = Forward.load(tiny_model, tiny_adapters[name])
        wanted = torch.stack(
            [torch.nn.functional.normalize(reference(byte_ids(t))[0][-1], dim=0) for t in TEXTS]
        )
        found = vectors(ask(worker, TEXTS, model=name))
        assert (found - wanted).abs().max() <= 1e-5
        assert (found - base).abs().max() > 1e-2
        ref = adapter_ref(tiny_adapters[name])
        by_reference = ask(worker, TEXTS, model=ref.name, adapter=ref.to_dict())
        assert torch.allclose(vectors(by_reference), found, atol=1e-5)
        assert by_reference["model"] == ref.name
        mixed = ask(worker, TEXTS, adapters=[{"adapter": ref.to_dict(), "weight": 1.0}])
        assert torch.allclose(vectors(mixed), found, atol=1e-5)


@pytest.mark.costly("a long list")
def test_a_long_list_takes_its_turn_in_a_short_queue(worker: Worker) -> None:
    """2,048 inputs through a batch of 4 and a queue of 3, while others generate."""
    stream = worker.client.completions.create(
        model="tiny", prompt="x", max_tokens=300, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    given = [[at % 256, at // 256, 7] for at in range(2048)]
    found = vectors(ask(worker, given))
    assert torch.allclose(found[1500:1501], vectors(ask(worker, given[1500])), atol=1e-5)
    assert [choice.finish_reason for chunk in stream for choice in chunk.choices][-1] == "length"
    assert worker.metric("requests_running") == worker.metric("requests_waiting") == 0


def test_a_hang_up_ends_the_list(worker: Worker) -> None:
    body = json.dumps({"model": "tiny", "input": [list(range(200))] * 1000}).encode()
    before = worker.metric("prompt_tokens_total")
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=60)
    connection.request("POST", PATH, body, {"Authorization": f"Bearer {TOKEN}"})
    eventually(lambda: worker.metric("prompt_tokens_total") > before)
    connection.close()
    eventually(lambda: not worker.metric("requests_running") and not worker.metric("requests_waiting"))
    computed = worker.metric("prompt_tokens_total")
    assert computed - before < 200 * 1000
    assert len(ask(worker, [1, 2, 3])["data"]) == 1
    assert worker.metric("prompt_tokens_total") == computed + 3, "inputs still run"


def test_one_time_limit_for_all_inputs(worker: Worker) -> None:
    body = {"model": "tiny", "input": [[at % 256] * 500 for at in range(2000)], "timeout": 0.3}
    before = worker.metric("prompt_tokens_total")
    status, answer = worker.call(PATH, body)
    assert (status, answer["error"]["code"]) == (503, "deadline_exceeded")
    eventually(lambda: not worker.metric("requests_running") and not worker.metric("requests_waiting"))
    assert worker.metric("prompt_tokens_total") - before < 500 * 2000


def test_a_full_queue_refuses(worker: Worker) -> None:
    """Four choices and four inputs exceed the queue's places by one."""
    busy = worker.client.completions.create(
        model="tiny", prompt="x", n=4, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(busy))
    status, answer = worker.call(PATH, {"model": "tiny", "input": [[5, 6]] * 4})
    assert (status, answer["error"]["code"]) == (503, "unavailable")
    assert len(ask(worker, [[5, 6]] * 3)["data"]) == 3
    busy.close()


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": [[]]}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input"),
        ({"input": ["a", 1]}, 400, "input"),
        ({"input": [1, "a"]}, 400, "input"),
        ({"input": ["a", [1]]}, 400, "input"),
        ({"input": [[1], "a"]}, 400, "input"),
        ({"input": [[1], [1.5]]}, 400, "input"),
        ({"input": [True]}, 400, "input"),
        ({"input": {"a": 1}}, 400, "input"),
        ({"input": 5}, 400, "input"),
        ({"input": [None]}, 400, "input"),
        ({"input": [256]}, 400, "input"),
        ({"input": [-1]}, 400, "input"),
        ({"input": [[3], [999]]}, 400, "input"),
        ({"input": "x" * 513}, 400, "input"),
        ({"input": [1] * 513}, 400, "input"),
        ({"input": ["x"] * 2049}, 400, "input"),
        ({"input": [[[1]]]}, 400, "input"),
        ({"encoding_format": "int8"}, 400, "encoding_format"),
        ({"encoding_format": 1}, 400, "encoding_format"),
        ({"dimensions": 0}, 400, "dimensions"),
        ({"dimensions": 73}, 400, "dimensions"),
        ({"dimensions": "x"}, 400, "dimensions"),
        ({"dimensions": 10**30}, 400, "dimensions"),
        ({"model": "nobody"}, 404, "model"),
        ({"model": None}, 400, "model"),
        ({"model": 1}, 400, "model"),
        ({"adapter": {"name": "x"}}, 400, "adapter"),
        ({"adapters": [1]}, 400, "adapters"),
        ({"wibble": 1}, 400, "wibble"),
        ({"stream": True}, 400, "stream"),
        ({"timeout": -1}, 400, "timeout"),
        ({"priority": "high"}, 400, "priority"),
        ({"temperature": 0}, 400, "temperature"),
    ],
)
def test_bad_fields_are_named(worker: Worker, body: dict[str, Any], status: int, param: str | None) -> None:
    given = {"model": "tiny", "input": "x"} | body if body else {"model": "tiny"}
    answered, answer = worker.call(PATH, given)
    assert answered == status, answer
    assert answer["error"]["param"] == param
    assert set(answer["error"]) == {"message", "type", "code", "param"}


def test_past_the_context_and_past_the_pool(tiny_model: Path, worker: Worker, tmp_path: Path) -> None:
    status, answer = worker.call(PATH, {"model": "tiny", "input": ["x", "x" * 513]})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "input[1]" in answer["error"]["message"]
    assert len(ask(worker, "x" * 512)["data"]) == 1
    with run_worker(tiny_model, tmp_path, "--memory-gib", "0.0002") as small:
        status, answer = small.call(PATH, {"model": "tiny", "input": [1] * 500})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert len(ask(small, [1] * 100)["data"]) == 1


def write_pooling(folder: Path, *modules: str) -> None:
    """Write sentence-transformers' files: mean pooling, and a list with these modules."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    listed = [
        {"path": f"{at}_{name}" if at else "", "type": f"sentence_transformers.models.{name}"}
        for at, name in enumerate(("Transformer", *modules))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


@pytest.fixture(scope="module")
def embedders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights as an adapter for embeddings: without pooling files, with them, and for chats."""
    root = tmp_path_factory.mktemp("embedders")
    for name in ("bare", "mean", "raw", "causal"):
        task = "CAUSAL_LM" if name == "causal" else "FEATURE_EXTRACTION"
        make_adapter(
            tiny_model, root / name, seed=7, r=8, target_modules=["q_proj", "up_proj"], task_type=task
        )
        if task != "CAUSAL_LM":
            rename_tensors(root / name / "adapter_model.safetensors")
    write_pooling(root / "mean", "Pooling", "Normalize")
    write_pooling(root / "raw", "Pooling")
    return {folder.name: folder for folder in root.iterdir()}


def rename_tensors(path: Path) -> None:
    """Give an adapter's tensors the names of a model without a head, as PEFT's task_type does."""
    prefix = "base_model.model."
    tensors = load_file(path)
    save_tensors(path, {name.replace(f"{prefix}model.", prefix): value for name, value in tensors.items()})


def test_an_embedding_adapter_has_its_own_pooling(
    tiny_model: Path, embedders: dict[str, Path], tmp_path: Path
) -> None:
    reference = Forward.load(tiny_model, embedders["causal"])
    states = [reference(byte_ids(text))[0] for text in TEXTS]
    last, mean = torch.stack([s[-1] for s in states]), torch.stack([s.mean(0) for s in states])
    root = str(embedders["mean"].parent)
    with run_worker(tiny_model, tmp_path, "--adapters-dir", root) as worker:
        for name, wanted in {
            "bare": unit(last),
            "causal": unit(last),
            "mean": unit(mean),
            "raw": mean,
        }.items():
            assert (vectors(ask(worker, TEXTS, model=name)) - wanted).abs().max() <= 1e-4, name
        shorter = vectors(ask(worker, TEXTS, model="raw", dimensions=9))
        assert torch.allclose(shorter, mean[:, :9], atol=1e-4)
        by_reference = adapter_ref(embedders["mean"])
        body = {"model": by_reference.name, "adapter": by_reference.to_dict()}
        assert (vectors(ask(worker, TEXTS, **body)) - unit(mean)).abs().max() <= 1e-4
        for path, text in (("completions", {"prompt": "x"}), ("chat/completions", {"messages": CHAT})):
            status, answer = worker.call(f"/v1/{path}", {"model": "bare", "max_tokens": 2, **text})
            assert (status, answer["error"]["code"]) == (400, "adapter_embeds_only")
            assert "/v1/embeddings" in answer["error"]["message"]
        assert worker.call("/v1/completions", {"model": "causal", "prompt": "x", "max_tokens": 2})[0] == 200


def test_pooled_as_the_checkpoint_says(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "m")
    (tmp_path / "m" / "1_Pooling").mkdir()
    config = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}
    (tmp_path / "m" / "1_Pooling" / "config.json").write_text(json.dumps(config))
    reference = Forward.load(tiny_model, None)
    wanted = torch.stack([unit(reference(byte_ids(text))[0].mean(0)) for text in TEXTS])
    with run_worker(tmp_path / "m", tmp_path) as worker:
        for _ in range(2):
            assert (vectors(ask(worker, TEXTS)) - wanted).abs().max() <= 1e-5
        with pytest.raises(openai.BadRequestError):
            worker.client.embeddings.create(model="tiny", input="")
