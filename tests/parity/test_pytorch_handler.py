"""The handler that deployments write for PyTorch's images, run with transformers and PEFT."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.containers.pytorch import REQUIREMENTS, pytorch_files
from tests.parity import references
from tests.parity.conftest import Reference, write_peft_adapter

Ask = Callable[..., list[dict[str, Any]]]
MESSAGES = [{"role": "user", "content": "Hé"}]


class Context:
    """TorchServe's context: the request's ids, and the content type of the answer."""

    request_ids = {0: "r"}
    content_type = ""

    def set_response_content_type(self, index: int, value: str) -> None:
        self.content_type = value


@pytest.fixture(scope="module")
def adapters(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    dora = write_peft_adapter(
        tiny_model, tmp_path_factory.mktemp("dora"), seed=3, r=4, use_dora=True, target_modules=["q_proj"]
    )
    return {"t_a.a_b.v1.one": tiny_adapters["all"], "rslora": tiny_adapters["rslora"], "dora": dora}


@pytest.fixture(scope="module")
def handler(tiny_model: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module as a container imports it, and the model that it has loaded."""
    folder = tmp_path_factory.mktemp("model")
    options = LmiOptions(dtype="fp32", max_model_len=64)
    places = {name: str(path) for name, path in adapters.items()}
    files = pytorch_files(options, model=str(tiny_model), revision="", accelerators=1, adapters=places)
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    spec = importlib.util.spec_from_file_location("inference", folder / "code" / "inference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules["inference"] = module
    spec.loader.exec_module(module)
    return module, module.model_fn(str(folder))


@pytest.fixture
def ask(handler: Any, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Calls the handler's functions as TorchServe's toolkit does; returns the answer's events."""
    module, served = handler
    sent: list[str] = []
    torchserve: Any = ModuleType("ts.handler_utils.utils")
    torchserve.send_intermediate_predict_response = lambda parts, *_: sent.append(parts[0])
    monkeypatch.setitem(sys.modules, "ts.handler_utils.utils", torchserve)

    def call(**request: Any) -> list[dict[str, Any]]:
        sent.clear()
        context = Context()
        value = module.input_fn(json.dumps(request).encode(), "application/json")
        last, content_type = module.output_fn(module.predict_fn(value, served, context), "*/*")
        assert content_type == context.content_type == "text/event-stream"
        return [json.loads(item.removeprefix("data: ")) for item in (*sent, last)]

    return call


def greedy(ask: Ask, count: int, **more: Any) -> list[dict[str, Any]]:
    sampling = {"max_tokens": count, "temperature": 0, "ignore_eos": True, **more.pop("sampling", {})}
    return ask(sampling=sampling, **more)


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(item["text"] for item in events)


def test_every_adapter_answers_as_transformers_and_peft_do(
    ask: Ask, tiny_model: Path, adapters: dict[str, Path]
) -> None:
    reference = Reference.load(tiny_model, {name.replace(".", "_"): path for name, path in adapters.items()})
    tokenizer = references.AutoTokenizer.from_pretrained(tiny_model)
    ids = tokenizer("hello world").input_ids
    texts = []
    for name in (None, *adapters, None):
        events = greedy(ask, 9, prompt="hello world", **({} if name is None else {"adapter": name}))
        inner = None if name is None else name.replace(".", "_")
        expected = reference.greedy(ids, 9, inner)
        assert text_of(events) == tokenizer.decode(expected, skip_special_tokens=True), name
        assert [item["completion_tokens"] for item in events] == list(range(1, 10)), "each token at once"
        assert {item["prompt_tokens"] for item in events} == {len(ids)}
        assert [item["finish_reason"] for item in events] == [None] * 8 + ["length"]
        texts.append(text_of(events))
    assert texts[0] == texts[-1], "an adapter stays out of the base model's answers"
    assert len(set(texts)) == 4


def test_a_chat_is_the_templates_text_with_its_own_special_tokens(ask: Ask, tiny_model: Path) -> None:
    tokenizer = references.AutoTokenizer.from_pretrained(tiny_model)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    length = len(tokenizer(text, add_special_tokens=False).input_ids)
    assert greedy(ask, 3, messages=MESSAGES)[-1]["prompt_tokens"] == length


def test_the_answer_ends_where_it_should(ask: Ask) -> None:
    whole = text_of(greedy(ask, 20, prompt="hello", adapter="rslora"))
    stop = whole[6:9]
    events = greedy(ask, 20, prompt="hello", adapter="rslora", sampling={"stop": ["never", stop]})
    assert text_of(events) == whole[: whole.index(stop)], "the stop sequence is no part of the answer"
    assert events[-1]["finish_reason"] == "stop"
    assert len(events) < 20, "generation ends too"


def test_a_stop_token_ends_the_answer(ask: Ask, tiny_model: Path, adapters: dict[str, Path]) -> None:
    tokenizer = references.AutoTokenizer.from_pretrained(tiny_model)
    reference = Reference.load(tiny_model, {})
    tokens = reference.greedy(tokenizer("hello").input_ids, 6)
    events = greedy(ask, 6, prompt="hello", sampling={"stop_token_ids": [tokens[3]]})
    assert events[-1]["finish_reason"] == "stop"
    assert events[-1]["completion_tokens"] == tokens.index(tokens[3]) + 1


def test_sampling_repeats_with_a_seed_alone(ask: Ask) -> None:
    sampling = {"max_tokens": 12, "top_p": 0.9, "min_p": 0.01, "top_k": 50, "repetition_penalty": 1.1}
    first, again, other, free = (
        text_of(ask(prompt="hello", sampling={**sampling, "ignore_eos": True, **seed}))
        for seed in ({"seed": 5}, {"seed": 5}, {"seed": 6}, {})
    )
    assert first == again
    assert len({first, other, free}) == 3


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        ({"prompt": "x", "sampling": {}, "adapter": "nobody"}, 404, "adapter nobody not found"),
        ({"prompt": "x", "sampling": {"max_tokens": 64}}, 400, "maximum context length is 64 tokens"),
        ({"messages": 5, "sampling": {}}, 400, "chat template refuses"),
    ],
)
def test_wrong_requests_are_told_as_events(ask: Ask, request_: Any, status: int, says: str) -> None:
    (event,) = ask(**request_)
    assert event["error"]["status"] == status
    assert says in event["error"]["message"]


def test_a_chat_without_max_tokens_gets_the_rest_of_the_context(ask: Ask) -> None:
    last = ask(messages=MESSAGES, sampling={"temperature": 0, "ignore_eos": True})[-1]
    assert last["prompt_tokens"] + last["completion_tokens"] == 64


def test_the_container_installs_the_releases_that_are_tested_here() -> None:
    assert torch.__version__ >= "2.6"
    for requirement in REQUIREMENTS:
        name, _, release = requirement.partition("==")
        assert metadata.version(name) == release
