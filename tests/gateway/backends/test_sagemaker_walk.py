"""From the openai client through gateway and local SageMaker to a real worker, and back onto the bill."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.gateway.backends.conftest import BASES, Walk, sse
from tests.waiting import eventually

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hé"}],
    "max_tokens": 24,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}
LIVE = [name for name in BASES if name != "asleep"]


def direct(walk: Walk, model: str = "tiny") -> Any:
    """Ask the worker directly and return its answer."""
    body = {**ASK, **ASK["extra_body"], "model": model}
    del body["extra_body"]
    status, answer = walk.local.worker.call("/v1/chat/completions", body)
    assert status == 200, answer
    return answer


@pytest.mark.parametrize("base", LIVE)
@pytest.mark.parametrize("adapted", [False, True])
def test_streams_are_the_workers_and_billed_exactly(walk: Walk, base: str, adapted: bool) -> None:
    model = f"bot-{base}" if adapted else base
    chunks = list(
        walk.client.chat.completions.create(
            model=model, stream=True, stream_options={"include_usage": True}, **ASK
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expected = direct(walk, walk.ref.name if adapted else "tiny")
    assert text == expected["choices"][0]["message"]["content"]
    assert {chunk.model for chunk in chunks} == {model}
    usage = chunks[-1].usage
    assert usage is not None
    event = walk.event()
    billed = (event.prompt_tokens, event.completion_tokens)
    assert billed == (usage.prompt_tokens, usage.completion_tokens)
    assert billed == (expected["usage"]["prompt_tokens"], 24)
    assert (event.status, event.estimated, event.backend) == ("ok", False, "sagemaker")
    assert event.endpoint.partition(".")[0] == base
    assert event.adapter == (walk.ref.name if adapted else "")
    assert event.ttft_ms is not None


@pytest.mark.parametrize("base", LIVE)
def test_whole_answers_of_an_adapter(walk: Walk, base: str) -> None:
    answer = walk.client.chat.completions.create(model=f"bot-{base}", **ASK)
    assert (
        answer.choices[0].message.content == direct(walk, walk.ref.name)["choices"][0]["message"]["content"]
    )
    assert answer.model == f"bot-{base}"
    event = walk.event()
    assert (event.completion_tokens, event.estimated, event.status) == (24, False, "ok")


def test_completions_take_the_same_path(walk: Walk) -> None:
    ask: dict[str, Any] = {"model": "components", "prompt": "hello", "max_tokens": 9, "temperature": 0}
    whole = walk.client.completions.create(**ask)
    stream = walk.client.completions.create(**ask, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole.choices[0].text
    assert [event.prompt_tokens for event in walk.control_plane.wait_events(2)] == [5, 5]


def test_what_sagemaker_is_told(walk: Walk) -> None:
    """The component, who asks, and nothing of the tenant's key."""
    answer = walk.post(model="bot-components", max_tokens=1)
    headers = walk.local.last()["headers"]
    request_id = answer.headers["x-request-id"]
    assert headers["x-amzn-sagemaker-inference-id"] == request_id
    assert headers["x-amzn-sagemaker-custom-attributes"] == f"x-request-id={request_id}"
    assert len(headers["x-amzn-sagemaker-prefix-aware-id"]) == 32
    assert headers["x-amzn-sagemaker-prefix-aware-id"] != "aa11"
    assert answer.json()["id"] == f"chatcmpl-{request_id}", "the worker knows the request by the same id"
    assert walk.local.last()["adapter"] == "plain"
    assert answer.headers["x-graftwork-adapter"] == walk.ref.name


def test_a_hang_up_ends_the_containers_work_at_once(walk: Walk) -> None:
    stream = walk.client.chat.completions.create(
        model="components", stream=True, **{**ASK, "max_tokens": 400}
    )
    seen = 0
    for chunk in stream:
        seen += bool(chunk.choices and chunk.choices[0].delta.content)
        if seen == 3:
            break
    stream.close()
    invocation = eventually(lambda: (last := walk.local.last())["ended"] and last)
    assert invocation["ended"] == "gone"
    eventually(lambda: walk.local.worker.metric("requests_running") == 0)
    event = walk.event()
    assert event.status == "cancelled"
    assert 3 <= event.completion_tokens < 400
    assert not event.estimated


@pytest.mark.parametrize("naming", ["components", "reference", "name"])
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("drop", "upstream_error"),
        ("corrupt", "upstream_error"),
        ("model_stream_error", "upstream_timeout"),
        ("internal_stream_failure", "upstream_error"),
    ],
)
def test_a_fault_within_a_stream_ends_it_with_an_error_and_bills_what_came(
    walk: Walk, naming: str, kind: str, code: str
) -> None:
    walk.local.fault(kind, after=20)
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = walk.post(model=naming, stream=True, max_tokens=200, stream_options=options)
    assert answer.status_code == 200
    *chunks, last = sse(answer.text)
    assert last.keys() == {"error"}
    assert last["error"].keys() == {"message", "type", "code", "param"}
    assert (last["error"]["type"], last["error"]["code"]) == ("server_error", code)
    assert chunks
    assert "[DONE]" not in chunks
    event = walk.event()
    assert (event.status, event.error_code, event.estimated) == ("error", code, False)
    assert event.completion_tokens == chunks[-1]["usage"]["completion_tokens"] > 0
    assert event.prompt_tokens == chunks[-1]["usage"]["prompt_tokens"]


@pytest.mark.parametrize("kind", ["model_stream_error", "internal_stream_failure"])
def test_openais_client_raises_what_broke_a_stream(walk: Walk, kind: str) -> None:
    walk.local.fault(kind, after=20)
    ask = {**ASK, "max_tokens": 200}
    seen = []
    with pytest.raises(openai.APIError) as failure:
        seen.extend(iter(walk.client.chat.completions.create(model="components", stream=True, **ask)))
    event = walk.event()
    assert failure.value.code == event.error_code
    assert event.status == "error"
    assert 0 < event.completion_tokens < 200


def test_a_pause_within_a_stream_is_no_error(walk: Walk) -> None:
    walk.local.fault("delay", after=5, seconds=0.5)
    answer = walk.post(model="components", stream=True, max_tokens=50)
    assert answer.elapsed.total_seconds() > 0.5
    assert sse(answer.text)[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("throttle", 503, "upstream_busy"),
        ("not_ready", 503, "upstream_busy"),
        ("unavailable", 503, "upstream_unreachable"),
        ("internal_failure", 502, "upstream_error"),
        ("dependency", 503, "upstream_unreachable"),
        ("expired_token", 502, "upstream_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_refusals_have_a_status_and_bill_nothing(
    walk: Walk, kind: str, status: int, code: str, stream: bool
) -> None:
    walk.local.fault(kind, count=9)
    answer = walk.post(model="components", stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    event = walk.event()
    assert (event.status, event.error_code) == ("error", code)
    assert (event.prompt_tokens, event.completion_tokens) == (0, 0)


@pytest.mark.parametrize("kind", ["internal_failure", "dependency", "expired_token"])
def test_a_passing_fault_before_the_first_byte_is_tried_once_more(walk: Walk, kind: str) -> None:
    walk.local.fault(kind, count=1)
    assert walk.post(model="components", max_tokens=2).status_code == 200
    walk.local.fault(kind, count=1)
    assert sse(walk.post(model="components", max_tokens=2, stream=True).text)[-1] == "[DONE]"


def test_a_stream_that_fails_before_its_first_byte_still_has_a_status(walk: Walk) -> None:
    walk.local.fault("internal_stream_failure")
    assert walk.post(model="components", max_tokens=2, stream=True).status_code == 502
    walk.local.fault("model_stream_error")
    assert walk.post(model="components", max_tokens=2, stream=True).status_code == 504


@pytest.mark.parametrize(
    "kind", ["throttle", "not_ready", "unavailable", "drop", "corrupt", "internal_stream_failure"]
)
def test_until_the_first_byte_another_copy_takes_over(walk: Walk, kind: str) -> None:
    walk.local.fault(kind)
    answer = walk.post(model="pair", max_tokens=2, stream=True)
    assert sse(answer.text)[-1] == "[DONE]"
    failed, served = walk.control_plane.wait_events(2)
    assert (failed.status, failed.completion_tokens) == ("error", 0)
    assert (served.status, served.completion_tokens) == ("ok", 2)
    assert failed.endpoint != served.endpoint


@pytest.mark.parametrize("stream", [True, False])
def test_the_containers_words_about_a_bad_request_reach_the_client(walk: Walk, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens"):
        walk.client.chat.completions.create(model="components", stream=stream, **{**ASK, "max_tokens": 9999})
    assert walk.event().error_code == "context_length_exceeded"


@pytest.mark.parametrize("model", ["asleep", "stray", "unknown"])
def test_what_is_not_there_yet_is_a_503(walk: Walk, model: str) -> None:
    """No capacity; an adapter without its component; an adapter unknown to the container."""
    answer = walk.post(model=model)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_busy")
    assert "retry-after" in answer.headers
    working = {"asleep": "components", "stray": "components", "unknown": "name"}[model]
    assert walk.post(model=working, max_tokens=1).status_code == 200, "the copy itself is not at fault"


def test_a_body_beyond_sagemakers_limit_is_refused_before_it_is_sent(walk: Walk) -> None:
    messages = [{"role": "user", "content": "x" * 6_300_000}]
    answer = walk.post(model="components", messages=messages)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
