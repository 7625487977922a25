"""SageMaker's container contract: LMI's bodies and answers, OpenAI's, the adapter header, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker_engine.sagemaker.conftest import HEADER, Container
from tests.worker_engine.tiny_adapter import adapter_ref

GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "ignore_eos_token": True}


def completion(container: Container, prompt: str, ref: Any = None, **more: Any) -> str:
    """The same through /v1/completions with the whole reference: what a name must mean."""
    body = {"model": "tiny" if ref is None else ref.name, "prompt": prompt, "max_tokens": 6}
    body |= {"temperature": 0, "ignore_eos": True} | ({} if ref is None else {"adapter": ref.to_dict()})
    status, answer = container.worker.call("/v1/completions", body | more)
    assert status == 200, answer
    text: str = answer["choices"][0]["text"]
    return text


def test_ping_needs_no_token_and_invocations_do(container: Container) -> None:
    assert container.call("GET", "/ping", token="")[0] == 200
    assert container.call("POST", "/invocations", {"inputs": "x"}, token="")[0] == 401


def test_each_input_has_its_own_adapter(container: Container, tiny_adapters: dict[str, Path]) -> None:
    plain, every = adapter_ref(tiny_adapters["plain"]), adapter_ref(tiny_adapters["all"])
    wanted = [completion(container, "hello", ref) for ref in (plain, None, every)]
    assert len(set(wanted)) == 3
    answer = container.invoke(
        {"inputs": ["hello"] * 3, "adapters": ["plain", "", "all"], "parameters": GREEDY}
    )
    assert [item["generated_text"] for item in answer] == wanted
    one = container.invoke({"inputs": "hello", "adapters": "plain", "parameters": GREEDY})
    assert one == {"generated_text": wanted[0]}
    header = container.invoke(
        {"inputs": "hello", "adapters": "plain", "parameters": GREEDY}, **{HEADER: "all"}
    )
    assert header == {"generated_text": wanted[2]}, "the header wins over the body"
    assert container.invoke({"inputs": "hello", "parameters": GREEDY}) == {"generated_text": wanted[1]}
    assert container.invoke({"inputs": ["hello"], "parameters": GREEDY}) == [{"generated_text": wanted[1]}]


def test_parameters_mean_what_they_mean_in_openais_form(container: Container) -> None:
    drawn = {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "seed": 7, "repetition_penalty": 1.3}
    wanted = completion(container, "abc", max_tokens=20, **drawn)
    parameters = {"max_new_tokens": 20, "ignore_eos_token": True, **drawn}
    assert container.invoke({"inputs": "abc", "parameters": parameters})["generated_text"] == wanted
    full = container.invoke({"inputs": "abc", "parameters": parameters | {"return_full_text": True}})
    assert full["generated_text"] == "abc" + wanted
    stopped = container.invoke({"inputs": "abc", "parameters": parameters | {"stop_sequences": [wanted[3]]}})
    assert stopped["generated_text"] == wanted[: wanted.index(wanted[3])]
    tail = container.invoke({"inputs": "zzzabc", "parameters": parameters | {"truncate": 3}})
    assert tail["generated_text"] == wanted


def test_details_tell_tokens_and_finish_reason(container: Container) -> None:
    answer = container.invoke({"inputs": "abc", "parameters": GREEDY | {"details": True, "seed": 5}})
    details = answer["details"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("length", 6, 5)
    assert details["prefill"] == []
    assert len(details["tokens"]) == 6
    assert all(token["logprob"] <= 0 and isinstance(token["id"], int) for token in details["tokens"])
    ids = [token["id"] for token in details["tokens"]]
    text = container.worker.call("/detokenize", {"tokens": ids})[1]["prompt"]
    assert text == answer["generated_text"]


def test_a_stream_is_a_token_a_line(container: Container) -> None:
    body = {"inputs": "abc", "parameters": GREEDY | {"details": True}, "stream": True}
    status, kind, text = container.call("POST", "/invocations", body)
    assert (status, kind) == (200, "application/jsonlines")
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(list(line) == ["index", "token", "generated_text", "details"] for line in lines)
    assert [set(line["token"]) for line in lines] == [{"id", "text", "logprob"}] * 6
    whole = container.invoke({"inputs": "abc", "parameters": GREEDY})["generated_text"]
    assert "".join(line["token"]["text"] for line in lines) == whole
    assert [line["generated_text"] for line in lines] == [None] * 5 + [whole]
    assert lines[-1]["details"] == {
        "finish_reason": "length",
        "seed": None,
        "generated_tokens": 6,
        "input_length": 3,
    }


def test_a_stream_of_several_inputs_tells_them_apart(container: Container) -> None:
    body = {"inputs": ["abc", "xyz"], "adapters": ["all", ""], "parameters": GREEDY, "stream": True}
    lines = [json.loads(line) for line in container.call("POST", "/invocations", body)[2].splitlines()]
    whole = container.invoke({key: item for key, item in body.items() if key != "stream"})
    for index, answer in enumerate(whole):
        mine = [line for line in lines if line["index"] == index]
        assert "".join(line["token"]["text"] for line in mine) == answer["generated_text"]
        assert mine[-1]["generated_text"] == answer["generated_text"]


def test_openai_bodies_need_no_model(container: Container, tiny_adapters: dict[str, Path]) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
    chat |= {"temperature": 0, "ignore_eos": True}
    base = container.invoke(chat)
    assert (base["object"], base["model"]) == ("chat.completion", "tiny")
    answers = [
        container.invoke(chat, **{HEADER: "all"}),
        container.invoke(chat | {"adapters": "all"}),
        container.invoke(chat | {"adapters": ["all"]}),
        container.invoke(chat | {"model": "all"}),
        container.worker.call("/v1/chat/completions", chat | {"model": "all"})[1],
    ]
    texts = {answer["choices"][0]["message"]["content"] for answer in answers}
    assert len(texts) == 1
    assert texts != {base["choices"][0]["message"]["content"]}
    prompt = {"prompt": "hello", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    text = container.invoke(prompt, **{HEADER: "plain"})["choices"][0]["text"]
    assert text == completion(container, "hello", adapter_ref(tiny_adapters["plain"]))
    mix = [{"adapter": adapter_ref(tiny_adapters["plain"]).to_dict(), "weight": 1.0}]
    assert container.invoke(prompt | {"adapters": mix})["choices"][0]["text"] == text


def test_openai_streams_are_json_lines(container: Container) -> None:
    body = {"messages": [{"role": "user", "content": "data: \n\nhi"}], "max_tokens": 4, "stream": True}
    status, kind, text = container.call("POST", "/invocations", body | {"temperature": 0})
    assert (status, kind) == (200, "application/jsonlines")
    assert text.endswith("}\n\n"), "the end is an empty line"
    chunks = [json.loads(line) for line in text.splitlines() if line]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


PARAMETER_CASES: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": 0}, "parameters.max_new_tokens"),
    ({"max_new_tokens": "x"}, "parameters.max_new_tokens"),
    ({"max_tokens": -1}, "parameters.max_tokens"),
    ({"temperature": -1}, "parameters.temperature"),
    ({"top_p": 0}, "parameters.top_p"),
    ({"top_k": "x"}, "parameters.top_k"),
    ({"seed": 0.5}, "parameters.seed"),
    ({"stop": [1]}, "parameters.stop"),
    ({"stop_sequences": [""]}, "parameters.stop_sequences"),
    ({"stop": "a", "stop_sequences": ["a"]}, "parameters.stop_sequences"),
    ({"details": 1}, "parameters.details"),
    ({"do_sample": "no"}, "parameters.do_sample"),
    ({"return_full_text": 1}, "parameters.return_full_text"),
    ({"truncate": 0}, "parameters.truncate"),
    ({"decoder_input_details": True}, "parameters.decoder_input_details"),
    ({"n": 2}, "parameters.n"),
    ({"top_n_tokens": 3}, "parameters.top_n_tokens"),
    ({"wibble": 1}, "parameters.wibble"),
    ({"messages": []}, "parameters.messages"),
    ({"model": "x"}, "parameters.model"),
    ({"adapter": {}}, "parameters.adapter"),
    ({"guided_regex": "(a"}, "parameters.guided_regex"),
    ({"logit_bias": {"999": 1}}, "parameters.logit_bias"),
    ({"response_format": {"type": "yaml"}}, "parameters.response_format.type"),
    ({"min_tokens": 50}, "parameters.min_tokens"),
    ({"max_new_tokens": 10**6}, "inputs"),
]
BODY_CASES: list[tuple[dict[str, Any], str]] = [
    *[({"inputs": "x", "parameters": parameters}, param) for parameters, param in PARAMETER_CASES],
    ({}, "inputs"),
    ({"inputs": None}, "inputs"),
    ({"inputs": 5}, "inputs"),
    ({"inputs": []}, "inputs"),
    ({"inputs": [1]}, "inputs"),
    ({"inputs": ""}, "inputs"),
    ({"inputs": ["x", ""]}, "inputs"),
    ({"inputs": ["x"] * 129}, "inputs"),
    ({"inputs": "x" * 5000}, "inputs"),
    ({"inputs": "x", "messages": []}, "messages"),
    ({"inputs": "x", "prompt": "y"}, "prompt"),
    ({"inputs": "x", "wibble": 1}, "wibble"),
    ({"inputs": "x", "parameters": []}, "parameters"),
    ({"inputs": "x", "stream": "yes"}, "stream"),
    ({"inputs": "x", "timeout": -1}, "timeout"),
    ({"inputs": "x", "adapters": "nobody"}, "adapters"),
    ({"inputs": "x", "adapters": 5}, "adapters"),
    ({"inputs": "x", "adapters": [5]}, "adapters"),
    ({"inputs": "x", "adapters": ["all", "all"]}, "adapters"),
    ({"inputs": ["x"] * 2, "adapters": ["all"]}, "adapters"),
    ({"inputs": "x", "adapters": {}}, "adapters"),
    ({"inputs": "x", "adapters": ["../all"]}, "adapters"),
    ({"inputs": "x", "model": "nobody"}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "x"}], "adapters": "no"}, "adapters"),
    ({"prompt": "x", "parameters": {}}, "parameters"),
    ({"prompt": "x", "model": "nobody"}, "model"),
]


@pytest.mark.costly("many bodies beside a load")
def test_bad_bodies_are_refused_by_name_while_others_are_served(container: Container) -> None:
    """In LMI's form. All of them while a stream is open, which goes on to its end."""
    stream = container.worker.client.completions.create(
        model="all", prompt="x", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    wrong = []
    for body, param in BODY_CASES:
        status, _, answer = container.call("POST", "/invocations", body)
        named = isinstance(answer, dict) and (answer.get("code"), answer.get("param")) == (424, param)
        told = named and (param.rpartition(".")[2] in answer["error"] or "context" in answer["error"])
        if status != 424 or not told:
            wrong.append((json.dumps(body)[:90], status, answer))
    assert wrong == []
    assert [choice.finish_reason for chunk in stream for choice in chunk.choices][-1] == "length"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff", b'{"inputs":"\xff"}', b'{"inputs":"\\ud800"}', b"[" * 9999]
)
def test_a_body_that_is_no_request(container: Container, raw: bytes) -> None:
    status, _, answer = container.call("POST", "/invocations", raw=raw)
    assert (status, answer["code"]) == (424, 424)
    assert container.invoke({"inputs": "x"})["generated_text"] is not None


def test_an_unknown_adapter_in_the_header_is_named(container: Container) -> None:
    for name in ("nobody", "../../etc/passwd", "x" * 5000):
        status, _, answer = container.call("POST", "/invocations", {"inputs": "x"}, headers={HEADER: name})
        assert (status, answer["param"]) == (424, HEADER)
        assert len(answer["error"]) < 600
