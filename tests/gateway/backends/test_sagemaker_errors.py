"""Each refusal of SageMaker: the client's error, and whether another copy is tried."""

from __future__ import annotations

import botocore.session
import orjson
import pytest

from gateway.backends.sagemaker import runtime_url
from gateway.backends.sagemaker_errors import SageMakerRefusal
from gateway.backends.upstream import Refusal
from gateway.errors import (
    GatewayError,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamUnreachable,
    render,
)


def meaning(status: int, code: str, body: object, *, adapter: bool = False) -> GatewayError:
    refusal = Refusal(status, orjson.dumps(body), {"x-amzn-errortype": code} if code else {})
    return SageMakerRefusal.read(refusal).error("r-1", adapter=adapter)


def model_error(status: int, text: str) -> GatewayError:
    body = {"Message": "Received client error", "OriginalStatusCode": status, "OriginalMessage": text}
    return meaning(424, "ModelError", body)


NO_CAPACITY = (
    "Inference Component has no capacity to process this request. ApplicationAutoScaling may be in-progress"
)
NOT_FOUND = "Inference Component base-0123 of account 123456789012 not found."


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, "ValidationError", NO_CAPACITY, UpstreamBusy),
        (400, "ValidationError", NOT_FOUND, UpstreamUnreachable),
        (400, "ValidationError", "Endpoint e of account 1 not found.", UpstreamUnreachable),
        (400, "ValidationError", "Header value is not right", UpstreamFailed),
        (429, "ThrottlingException", "Rate exceeded", UpstreamBusy),
        (429, "ModelNotReadyException", "Model is not ready", UpstreamBusy),
        (503, "ServiceUnavailable", "", UpstreamUnreachable),
        (530, "InternalDependencyException", "", UpstreamUnreachable),
        (500, "InternalFailure", "", UpstreamBroken),
        (403, "AccessDeniedException", "role x may not", UpstreamBroken),
        (418, "", "surprise", UpstreamBroken),
    ],
)
def test_services_own_refusals(
    status: int, code: str, message: str, kind: type[GatewayError], caplog: pytest.LogCaptureFixture
) -> None:
    error = meaning(status, code, {"Message": message})
    assert type(error) is kind
    _, body, _ = render(error)
    assert not message or message.encode() not in body, "accounts and roles are not the client's business"
    assert message in caplog.text


def test_every_error_that_the_runtime_may_answer_has_its_meaning() -> None:
    """Errors are named as in botocore's models; those without a status come within a stream."""
    model = botocore.session.Session().get_service_model("sagemaker-runtime")
    found = {}
    for operation in ("InvokeEndpoint", "InvokeEndpointWithResponseStream"):
        for shape in model.operation_model(operation).error_shapes:
            if status := shape.metadata.get("error", {}).get("httpStatusCode"):
                found[shape.name] = type(meaning(status, shape.name, {"Message": ""}))
    assert found == {
        "InternalDependencyException": UpstreamUnreachable,
        "InternalFailure": UpstreamBroken,
        "ModelError": UpstreamFailed,
        "ModelNotReadyException": UpstreamBusy,
        "ServiceUnavailable": UpstreamUnreachable,
        "ValidationError": UpstreamFailed,
    }


@pytest.mark.parametrize(
    "code", ["ModelError", "ModelError:http://internal.amazon.com/coral/", "x#ModelError", ""]
)
def test_a_code_is_read_wherever_it_stands(code: str) -> None:
    body = {"OriginalStatusCode": 400, "OriginalMessage": '{"error": {"message": "bad", "code": "c"}}'}
    status, sent, _ = render(meaning(424, code, body))
    assert (status, orjson.loads(sent)["error"]["message"]) == (400, "bad")


@pytest.mark.parametrize("status", [400, 413, 422, 429])
def test_the_containers_words_about_the_request_pass(status: int) -> None:
    error = {"message": "too long", "type": "invalid_request_error", "code": "x", "param": None}
    sent = render(model_error(status, orjson.dumps({"error": error}).decode()))
    assert sent[:2] == (status, orjson.dumps({"error": error}))


def test_lmis_424_is_a_400_with_its_words() -> None:
    status, body, _ = render(model_error(424, '{"error": "max_tokens is too large", "code": 424}'))
    error = orjson.loads(body)["error"]
    assert (status, error["message"], error["type"]) == (
        400,
        "max_tokens is too large",
        "invalid_request_error",
    )
    assert render(model_error(424, "plain words"))[0] == 400


@pytest.mark.parametrize(
    "error",
    [
        meaning(400, "ValidationError", {"Message": NOT_FOUND}, adapter=True),
        model_error(424, '{"error": "Adapter t_a.a_b.v1 is not registered", "code": 424}'),
        model_error(424, '{"error": "no adapter is called x", "code": 424, "param": "adapters"}'),
    ],
)
def test_a_missing_adapter_is_503_and_not_the_copys_fault(error: GatewayError) -> None:
    assert isinstance(error, UpstreamBusy)
    assert not error.of_copy
    assert render(error)[0] == 503


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, UpstreamFailed),
        (404, UpstreamFailed),
        (502, UpstreamBroken),
        (0, UpstreamBroken),
        (503, UpstreamBusy),
    ],
)
def test_a_containers_own_trouble(status: int, kind: type[GatewayError]) -> None:
    error = model_error(status, "Traceback: /opt/secret")
    assert type(error) is kind
    assert b"secret" not in render(error)[1]


@pytest.mark.parametrize(
    "region", ["us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1", "eusc-de-east-1", "ap-southeast-7"]
)
def test_the_runtimes_address_is_botocores(region: str) -> None:
    client = botocore.session.Session().create_client(
        "sagemaker-runtime", region_name=region, aws_access_key_id="a", aws_secret_access_key="b"
    )
    assert runtime_url(region) == client.meta.endpoint_url
