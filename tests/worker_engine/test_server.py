"""The worker as a process: OpenAI's routes, refusals in OpenAI's form, hang-ups, the fleet token, SIGTERM."""

from __future__ import annotations

import http.client
import json
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers

from tests.waiting import eventually
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import TOKEN, Worker, run_worker, worker_environment

pytestmark = pytest.mark.costly("starts workers")


def test_openai_client_streams_chat_and_completions(worker: Worker) -> None:
    ask: dict[str, Any] = {
        "model": "tiny",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hé"}, {"type": "text", "text": "llo"}]},
        ],
        "max_completion_tokens": 12,
        "temperature": 0,
    }
    whole = worker.client.chat.completions.create(**ask, extra_body={"ignore_eos": True})
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (12, "length")
    stream = worker.client.chat.completions.create(
        **ask, extra_body={"ignore_eos": True}, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert not chunks[-1].choices
    plain = worker.client.completions.create(model="tiny", prompt="abc", temperature=0)
    assert plain.usage is not None
    assert plain.usage.prompt_tokens == 3
    assert plain.usage.completion_tokens <= 16


def test_continuous_usage_ends_every_chunk(worker: Worker) -> None:
    status, text = worker.complete(
        stream=True, temperature=0, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    assert status == 200
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(item) for item in events]
    assert all(list(chunk)[-1] == "usage" for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert chunks[0]["id"] == "cmpl-r-1"


def test_other_refusals(worker: Worker) -> None:
    assert worker.call("/v1/models", token="wrong")[0] == 401
    assert worker.call("/health", token="wrong")[0] == 200
    assert worker.call("/ping", token="wrong")[1] == {"status": "ok"}
    told = worker.call("/health")[1]
    assert set(told.pop("kernels").values()) == {"pytorch"}
    assert set(told.pop("startup")) >= {"kind", "seconds", "total"}
    assert told == {
        "status": "ok",
        "device": "cpu",
        "tuned_configs": [],
        "decode_graphs": "off",
        "overlap": False,
        "merging": None,
        "speculation": "off",
    }
    assert worker.call("/v1/nothing")[1]["error"]["code"] == "not_found"
    assert worker.call("/v1/completions")[0] == 405
    assert worker.call("/v1/completions", raw=b"x" * (9 << 20))[0] == 413
    status, body = worker.complete(model="other")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert "'tiny'" in body["error"]["message"]
    assert worker.complete(prompt=[1, 256])[1]["error"]["param"] == "prompt"
    status, body = worker.complete(prompt="x" * 500, max_tokens=20)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert all(text in body["error"]["message"] for text in ("512", "500", "20", "520"))


def copy_adapter(source: Path, target: Path, change: Callable[[Path], object]) -> Path:
    shutil.copytree(source, target)
    change(target)
    return target


def _edit_config(**fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def _edit_tensors(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        edit(tensors)
        save_file(tensors, path)

    return change


def _edit_bytes(edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        path.write_bytes(edit(path.read_bytes()))

    return change


KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BAD_ADAPTERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (_edit_bytes(lambda data: data[:-10]), "not a safetensors file"),
    "garbled header": (_edit_bytes(lambda data: b"\xff" * 64 + data[64:]), "not a safetensors file"),
    "empty": (_edit_bytes(lambda _: b""), "not a safetensors file"),
    "pickle": (_edit_bytes(lambda _: pickle.dumps({"x": 1})), "not a safetensors file"),
    "NaN": (_edit_tensors(lambda t: t[KEY].view(-1)[3:4].fill_(float("nan"))), KEY),
    "shape": (_edit_tensors(lambda t: t.update({KEY: torch.zeros(4, 71)})), "[4, 71], expected [4, 72]"),
    "rank": (_edit_config(r=5), "expected ["),
    "half missing": (_edit_tensors(lambda t: t.pop(KEY)), "lora_A.weight is missing"),
    "no tensors": (_edit_tensors(lambda t: t.clear()), "holds no LoRA tensor"),
    "layer": (
        _edit_tensors(lambda t: t.update({KEY.replace("layers.0", "layers.3"): torch.zeros(4, 72)})),
        "no module model.layers.3",
    ),
    "foreign tensor": (_edit_tensors(lambda t: t.update({"lm_head.weight": torch.zeros(2)})), "lm_head"),
    "integers": (_edit_tensors(lambda t: t.update({KEY: torch.zeros(4, 72, dtype=torch.int8)})), "int8"),
    "overflow once scaled": (
        lambda folder: (
            _edit_tensors(lambda t: t[KEY.replace("lora_A", "lora_B")].fill_(1e38))(folder),
            _edit_config(lora_alpha=60000)(folder),
        ),
        "overflow",
    ),
    "DoRA": (_edit_config(use_dora=True), "lora_magnitude_vector is missing"),
    "modules_to_save": (_edit_config(modules_to_save=["lm_head"]), "modules_to_save"),
    "bias": (_edit_config(bias="some"), "bias"),
    "PiSSA": (_edit_config(init_lora_weights="pissa"), "init_lora_weights"),
    "not LoRA": (_edit_config(peft_type="IA3"), "peft_type"),
    "evil pattern": (_edit_config(rank_pattern={r"(a)\1": 3}), "rank_pattern"),
    "config no JSON": (lambda f: (f / "adapter_config.json").write_text("{"), "not JSON"),
}


@pytest.mark.parametrize("case", BAD_ADAPTERS)
def test_a_bad_adapter_is_refused_while_others_are_served(
    case: str, worker: Worker, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    change, wanted = BAD_ADAPTERS[case]
    bad = adapter_ref(copy_adapter(tiny_adapters["plain"], tmp_path / "bad", change))
    status, body = worker.complete(model=bad.name, adapter=bad.to_dict())
    assert (status, body["error"]["code"]) == (400, "adapter_refused")
    assert wanted in body["error"]["message"]
    good = adapter_ref(tiny_adapters["plain"])
    assert worker.complete(model=good.name, adapter=good.to_dict())[0] == 200


def test_adapter_references_are_held_to_their_word(
    worker: Worker, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    ref = adapter_ref(tiny_adapters["all"], rank=16)
    assert worker.complete(model="tiny", adapter=ref.to_dict())[0] == 404
    swapped = ref.to_dict() | {"uri": tiny_adapters["narrow"].as_uri()}
    status, body = worker.complete(model=ref.name, adapter=swapped)
    assert (status, body["error"]["code"]) == (400, "adapter_refused")
    assert "digest" in body["error"]["message"]
    status, body = worker.complete(model=ref.name, adapter=ref.to_dict() | {"rank": 8})
    assert (status, "rank 16" in body["error"]["message"]) == (400, True)
    gone = ref.to_dict() | {"uri": (tmp_path / "nowhere").as_uri()}
    status, body = worker.complete(model=ref.name, adapter=gone)
    assert status == 200, "the cache holds the content, wherever the reference points"
    other = adapter_ref(tiny_adapters["rslora"])
    gone = other.to_dict() | {"uri": (tmp_path / "nowhere").as_uri()}
    status, body = worker.complete(model=other.name, adapter=gone)
    assert (status, body["error"]["code"]) == (503, "adapter_unavailable")
    assert worker.complete(model=other.name, adapter=other.to_dict() | {"uri": "ftp://x/"})[0] == 400


def test_a_client_that_hangs_up_stops_the_generation(worker: Worker) -> None:
    before = worker.metric("generated_tokens_total")
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {TOKEN}"})
    connection.getresponse().read(200)
    assert worker.metric("requests_running") == 1
    connection.sock.shutdown(2)
    connection.close()
    eventually(lambda: not worker.metric("requests_running") and not worker.metric("kv_pages_used"))
    generated = worker.metric("generated_tokens_total")
    assert generated - before < 500, "it was generated to the end"
    assert worker.complete(max_tokens=5)[0] == 200
    assert worker.metric("generated_tokens_total") == generated + 5, "still generating"


def test_a_prompt_of_token_ids_is_the_prompt(worker: Worker) -> None:
    """In the byte tokenizer of these tests a text's ids are known."""
    text = worker.complete(prompt="hello", temperature=0)[1]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = worker.complete(prompt=[alphabet.index(letter) for letter in "hello"], temperature=0)[1]
    assert ids["choices"] == text["choices"]
    assert ids["usage"] == text["usage"]


def test_sigterm_ends_cleanly_with_a_stream_open(tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path) as worker:
        connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {TOKEN}"})
        connection.getresponse().read(100)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(15) == 0
        connection.close()
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--model", "/nowhere"], "config.json"),
        (["--dtype", "int3"], "--dtype"),
        (["--max-model-len", "9999"], "--max-model-len"),
        (["--memory-gib", "0.00000001"], "--memory-gib"),
    ],
)
def test_a_wrong_start_says_why(tiny_model: Path, flags: list[str], wanted: str) -> None:
    command = [sys.executable, "-m", "worker_engine", "--model", str(tiny_model), "--served-model-name", "m"]
    done = subprocess.run(
        [*command, *flags], env=worker_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr
