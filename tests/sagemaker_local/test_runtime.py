"""boto3, unmodified, against the local runtime in front of a real worker."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import ClientError, EventStreamError

from tests.sagemaker_local.processes import KEY, PART_BYTES, REGION, TEMPORARY, LocalSageMaker
from tests.sagemaker_local.stand import ADMIN
from tests.worker_process import TOKEN, run_worker

CHAT = {
    "messages": [{"role": "user", "content": "Hé"}],
    "max_tokens": 24,
    "temperature": 0,
    "ignore_eos": True,
}
STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}


def ask(body: object, **extra: Any) -> dict[str, Any]:
    arguments = {"EndpointName": "shared", "InferenceComponentName": "base", **extra}
    return {"Body": json.dumps(body).encode(), "ContentType": "application/json", **arguments}


def payload(answer: Any) -> bytes:
    with contextlib.closing(answer["Body"]) as events:
        return b"".join(event["PayloadPart"]["Bytes"] for event in events)


def text_of(lines: bytes) -> str:
    chunks = [json.loads(line) for line in lines.splitlines() if line.strip()]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


@pytest.mark.parametrize("key", [KEY, TEMPORARY])
def test_boto3_streams_what_the_worker_says(local: LocalSageMaker, key: dict[str, str]) -> None:
    answer = local.boto3(key).invoke_endpoint_with_response_stream(**ask(STREAM))
    assert answer["ContentType"] == "application/jsonlines"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    parts = [event["PayloadPart"]["Bytes"] for event in answer["Body"]]
    assert max(map(len, parts)) <= PART_BYTES
    assert any(not part.endswith(b"\n") for part in parts), "lines straddle parts, as on SageMaker"
    _, whole = local.worker.call("/v1/chat/completions", {"model": "tiny", **CHAT})
    assert text_of(b"".join(parts)) == whole["choices"][0]["message"]["content"]
    assert local.last()["ended"] == "whole"


def test_boto3_invokes_base_and_adapter(local: LocalSageMaker) -> None:
    client = local.boto3()
    base = json.loads(client.invoke_endpoint(**ask(CHAT))["Body"].read())
    ours = json.loads(client.invoke_endpoint(**ask(CHAT, InferenceComponentName="bot"))["Body"].read())
    _, direct = local.worker.call("/v1/chat/completions", {"model": "plain", **CHAT})
    assert ours["choices"][0]["message"] == direct["choices"][0]["message"] != base["choices"][0]["message"]
    assert local.last()["adapter"] == "plain"
    single = client.invoke_endpoint(EndpointName="single", Body=json.dumps(CHAT).encode())
    assert json.loads(single["Body"].read())["choices"][0]["message"] == base["choices"][0]["message"]


def refused(call: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return dict(caught.value.response)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"EndpointName": "none"}, "Endpoint none of account 000000000000 not found"),
        ({"InferenceComponentName": "none"}, "Inference Component none of account"),
        ({"InferenceComponentName": "asleep"}, "has no capacity to process this request"),
        ({"EndpointName": "single"}, "hosts no inference components"),
        ({"EndpointName": "single", "TargetVariant": "none"}, "Variant none of endpoint single of account"),
        ({"InferenceComponentName": "-bad"}, "regular expression pattern"),
        ({"InferenceId": "x" * 65}, "less than or equal to 64"),
        ({"CustomAttributes": "x" * 1025}, "less than or equal to 1024"),
        ({"Body": b"x" * 6_291_457}, "less than or equal to 6291456"),
    ],
)
def test_what_sagemaker_refuses_is_a_validation_error(
    local: LocalSageMaker, extra: dict[str, Any], said: str
) -> None:
    response = refused(local.boto3().invoke_endpoint_with_response_stream, **ask(STREAM) | extra)
    assert response["Error"]["Code"] == "ValidationError"
    assert said in response["Error"]["Message"]


def test_the_containers_refusal_is_a_model_error_with_its_own_words(local: LocalSageMaker) -> None:
    response = refused(local.boto3().invoke_endpoint, **ask({**CHAT, "max_tokens": 100_000}))
    assert response["Error"]["Code"] == "ModelError"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert response["OriginalStatusCode"] == 424
    assert "in the completion" in json.loads(response["OriginalMessage"])["error"]


@pytest.mark.parametrize(
    ("key", "region", "code"),
    [
        ({**KEY, "secret_key": "wrong"}, REGION, "InvalidSignatureException"),
        ({**KEY, "access_key": "NOBODY"}, REGION, "UnrecognizedClientException"),
        ({**TEMPORARY, "session_token": "other"}, REGION, "UnrecognizedClientException"),
        (KEY, "us-east-1", "InvalidSignatureException"),
    ],
)
def test_who_may_not_call_is_refused(
    local: LocalSageMaker, key: dict[str, str], region: str, code: str
) -> None:
    response = refused(local.boto3(key, region).invoke_endpoint, **ask(CHAT))
    assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (code, 403)


def signed(local: LocalSageMaker, body: bytes) -> AWSRequest:
    request = AWSRequest("POST", f"{local.url}/endpoints/single/invocations", {"Content-Type": "a/b"}, body)
    SigV4Auth(Credentials(KEY["access_key"], KEY["secret_key"]), "sagemaker", REGION).add_auth(request)
    return request


@pytest.mark.parametrize("change", ["body", "header", "path", "date", "unsigned"])
def test_a_request_that_differs_from_what_was_signed_is_refused(local: LocalSageMaker, change: str) -> None:
    request = signed(local, b"{}")
    headers, url, body = dict(request.headers.items()), request.url, b"{}"
    match change:
        case "body":
            body = b"{ }"
        case "header":
            headers["Content-Type"] = "a/c"
        case "path":
            url = url.replace("single", "shared")
        case "date":
            headers["X-Amz-Date"] = headers["X-Amz-Date"][:9] + "000000Z"
        case "unsigned":
            del headers["Authorization"]
    assert httpx.post(url, headers=headers, content=body).status_code == 403


def token(expires: int = 3600, action: str = "CallWithBearerToken") -> str:
    request = AWSRequest(
        "POST",
        "https://sagemaker.amazonaws.com/",
        {"host": "sagemaker.amazonaws.com"},
        params={"Action": action},
    )
    credentials = Credentials(KEY["access_key"], KEY["secret_key"])
    SigV4QueryAuth(credentials, "sagemaker", REGION, expires=expires).add_auth(request)
    text = request.url.removeprefix("https://") + "&Version=1"
    return "sagemaker-api-key-" + base64.b64encode(text.encode()).decode()


def test_the_openai_path_takes_a_bearer_token(local: LocalSageMaker) -> None:
    url = f"{local.url}/endpoints/shared/inference-components/base/openai/v1/chat/completions"
    body = {"model": "tiny", **CHAT}
    answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {token()}"})
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"
    for wrong in (token(50_000), token(action="Other"), token()[:-8], "sagemaker-api-key-x", "x"):
        assert httpx.post(url, json=body, headers={"Authorization": f"Bearer {wrong}"}).status_code == 403
    other = url.replace("chat/completions", "completions")
    assert httpx.post(other, json=body, headers={"Authorization": f"Bearer {token()}"}).status_code == 403


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        ("throttle", "ThrottlingException", 429),
        ("not_ready", "ModelNotReadyException", 429),
        ("internal_failure", "InternalFailure", 500),
        ("unavailable", "ServiceUnavailable", 503),
        ("dependency", "InternalDependencyException", 530),
        ("expired_token", "ExpiredTokenException", 403),
    ],
)
def test_faults_before_an_answer(local: LocalSageMaker, kind: str, code: str, status: int) -> None:
    local.fault(kind)
    response = refused(local.boto3().invoke_endpoint, **ask(CHAT))
    assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert local.boto3().invoke_endpoint(**ask(CHAT))["Body"].read(), "it is over after one"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("drop", Exception),
        ("corrupt", ChecksumMismatch),
        ("model_stream_error", EventStreamError),
        ("internal_stream_failure", EventStreamError),
    ],
)
def test_faults_within_a_stream_reach_boto3(local: LocalSageMaker, kind: str, error: type[Exception]) -> None:
    local.fault(kind, after=3)
    answer = local.boto3().invoke_endpoint_with_response_stream(**ask(STREAM))
    with pytest.raises(error):
        payload(answer)
    assert local.last()["ended"] == "fault"
    assert local.last()["parts"] == 3


def test_a_delay_is_a_delay(local: LocalSageMaker) -> None:
    local.fault("delay", after=2, seconds=0.7)
    started = time.monotonic()
    assert text_of(payload(local.boto3().invoke_endpoint_with_response_stream(**ask(STREAM))))
    assert time.monotonic() - started > 0.7


def test_endpoints_can_be_put_and_deleted(local: LocalSageMaker) -> None:
    local.put("endpoints/new", {"container": local.container})
    assert local.boto3().invoke_endpoint(EndpointName="new", Body=json.dumps(CHAT).encode())
    httpx.delete(f"{local.url}/_local/endpoints/new", headers=ADMIN).raise_for_status()
    assert (
        "not found"
        in refused(local.boto3().invoke_endpoint, EndpointName="new", Body=b"")["Error"]["Message"]
    )
    for wrong in (
        {},
        {"container": local.container, "components": {"a": {"base": "b"}}},
        {"components": {"a": {"base": "b"}}},
    ):
        url = f"{local.url}/_local/endpoints/new"
        assert httpx.put(url, json=wrong, headers=ADMIN).status_code == 400


def test_a_container_that_dies_breaks_the_stream(
    local: LocalSageMaker, tiny_model: Path, tmp_path: Path
) -> None:
    with run_worker(tiny_model, tmp_path, "--memory-gib", "0.01") as worker:
        container = {"url": f"http://127.0.0.1:{worker.port}", "token": TOKEN}
        local.put("endpoints/dying", {"container": container})
        body = {**STREAM, "max_tokens": 450}
        answer = local.boto3().invoke_endpoint_with_response_stream(
            EndpointName="dying", Body=json.dumps(body).encode(), ContentType="application/json"
        )
        with contextlib.closing(answer["Body"]) as events:
            first = next(iter(events))
            worker.process.kill()
            with pytest.raises(EventStreamError, match="reset or closed"):
                list(events)
    assert first["PayloadPart"]["Bytes"]
    assert local.last()["ended"] == "broken"
