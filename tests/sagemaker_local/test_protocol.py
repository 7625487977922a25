"""Signatures by service, refusals by protocol, and requests forwarded to moto."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.conftest import free_port
from tests.sagemaker_local.stand import ADMIN, BUCKET, IMAGE, KEY, REGION, ROLE, Stand, refused, run_stand

OTHER_KEY = {"access_key": "AKIDELSEWHERE", "secret_key": "other-secret"}
CALLS = {
    "sagemaker": "list_models",
    "application-autoscaling": "describe_scalable_targets",
    "cloudwatch": "describe_alarms",
    "s3": "list_buckets",
    "iam": "list_roles",
    "sts": "get_caller_identity",
}
_ARGUMENTS = {"application-autoscaling": {"ServiceNamespace": "sagemaker"}}
_JSON = ("InvalidSignatureException", "UnrecognizedClientException")
REFUSALS = {
    "sagemaker": _JSON,
    "application-autoscaling": _JSON,
    "cloudwatch": _JSON,
    "s3": ("SignatureDoesNotMatch", "InvalidAccessKeyId"),
    "iam": ("SignatureDoesNotMatch", "InvalidClientTokenId"),
    "sts": ("SignatureDoesNotMatch", "InvalidClientTokenId"),
}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        yield running


@pytest.fixture(scope="module")
def other_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An S3 of other keys, which checks signatures as MinIO does: a second local SageMaker's."""
    with run_stand(tmp_path_factory.mktemp("elsewhere"), credentials=[OTHER_KEY]) as running:
        yield running


@pytest.fixture(scope="module")
def before_elsewhere(other_s3: Stand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A local SageMaker that keeps its artifacts in `other_s3`."""
    keys = {
        "AWS_ACCESS_KEY_ID": OTHER_KEY["access_key"],
        "AWS_SECRET_ACCESS_KEY": OTHER_KEY["secret_key"],
        "GRAFTWORK_S3_ENDPOINT_URL": other_s3.url,
    }
    with run_stand(tmp_path_factory.mktemp("before"), environment=keys) as running:
        yield running


@pytest.mark.parametrize("service", CALLS)
def test_each_service_demands_its_own_signature(stand: Stand, service: str) -> None:
    def call(**client: Any) -> Any:
        return getattr(stand.client(service, **client), CALLS[service])

    arguments = _ARGUMENTS.get(service, {})
    assert call()(**arguments)["ResponseMetadata"]["HTTPStatusCode"] == 200
    wrong, unknown = REFUSALS[service]
    assert refused(call(key={**KEY, "secret_key": "other"}), **arguments)[0] == wrong
    assert refused(call(key={**KEY, "access_key": "NOBODY"}), **arguments)[0] == unknown
    if service in ("sagemaker", "application-autoscaling", "cloudwatch"):
        assert refused(call(region="ap-south-1"), **arguments)[0] == wrong


def send(stand: Stand, *, service: str, change: str = "") -> httpx.Response:
    """ListModels, signed for `service`."""
    headers = {"X-Amz-Target": "SageMaker.ListModels", "Content-Type": "application/x-amz-json-1.1"}
    request = AWSRequest("POST", f"{stand.url}/", headers, b"{}")
    SigV4Auth(Credentials(KEY["access_key"], KEY["secret_key"]), service, REGION).add_auth(request)
    signed, body = dict(request.headers.items()), b"{}"
    match change:
        case "target":
            signed["X-Amz-Target"] = "SageMaker.ListEndpoints"
        case "body":
            body = b'{"MaxResults": 1}'
        case "digest":
            # The digest of the signed body, and another body.
            request = AWSRequest("POST", f"{stand.url}/", headers, b"{}")
            request.headers["X-Amz-Content-SHA256"] = (
                "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
            )
            SigV4Auth(Credentials(KEY["access_key"], KEY["secret_key"]), service, REGION).add_auth(request)
            signed, body = dict(request.headers.items()), b'{"MaxResults": 1}'
        case "unsigned":
            del signed["Authorization"]
    return httpx.post(f"{stand.url}/", headers=signed, content=body)


def test_a_signature_holds_for_one_request_alone(stand: Stand) -> None:
    assert send(stand, service="sagemaker").status_code == 200
    for service, change, code in (
        ("s3", "", "InvalidSignatureException"),
        ("sagemaker", "target", "InvalidSignatureException"),
        ("sagemaker", "body", "InvalidSignatureException"),
        ("sagemaker", "digest", "XAmzContentSHA256Mismatch"),
        ("sagemaker", "unsigned", "MissingAuthenticationTokenException"),
    ):
        answer = send(stand, service=service, change=change)
        assert (answer.status_code, answer.json()["__type"]) == (400, code)


@pytest.mark.parametrize("name", ["stand", "before_elsewhere"])
def test_s3_keeps_what_boto3_and_presigned_urls_put_there(name: str, request: pytest.FixtureRequest) -> None:
    """Its own S3, and another server's."""
    stand: Stand = request.getfixturevalue(name)
    s3 = stand.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    body = bytes(range(256)) * 40_000
    s3.upload_fileobj(io.BytesIO(body), BUCKET, "a b/ü+%.bin")
    assert s3.head_object(Bucket=BUCKET, Key="a b/ü+%.bin")["ContentLength"] == len(body)
    assert s3.get_object(Bucket=BUCKET, Key="a b/ü+%.bin", Range="bytes=1-3")["Body"].read() == b"\1\2\3"
    url = s3.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "a b/ü+%.bin"})
    assert httpx.get(url).content == body
    put = s3.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": "put"}, ExpiresIn=60)
    assert httpx.put(put, content=b"put").status_code == 200
    assert s3.get_object(Bucket=BUCKET, Key="put")["Body"].read() == b"put"
    answer = httpx.put(put.replace("/put?", "/other?"), content=b"put")
    assert (answer.status_code, "SignatureDoesNotMatch" in answer.text) == (403, True)
    assert httpx.get(f"{stand.url}/{BUCKET}/put").status_code == 403


def test_s3_at_this_address_is_the_one_that_copies_read(
    before_elsewhere: Stand, other_s3: Stand, tmp_path: Path
) -> None:
    """With artifacts on another S3, the control plane reads and writes them through this one address."""
    (tmp_path / "file").write_bytes(b"weights")
    url = before_elsewhere.upload("model.tar.gz", tmp_path)
    there, here = other_s3.client("s3", key=OTHER_KEY), before_elsewhere.client("s3")
    packed = there.get_object(Bucket=BUCKET, Key="model.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["file"]
    there.put_object(Bucket=BUCKET, Key="result/output.json", Body=b"{}")
    listed = here.list_objects_v2(Bucket=BUCKET, Prefix="result/", Delimiter="/")["Contents"]
    assert [item["Key"] for item in listed] == ["result/output.json"]
    assert here.copy_object(Bucket=BUCKET, Key="copy", CopySource=f"{BUCKET}/model.tar.gz")[
        "CopyObjectResult"
    ]
    here.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "copy"}, {"Key": "model.tar.gz"}]})
    assert refused(there.head_object, Bucket=BUCKET, Key="copy")[0] == "404"
    assert url == f"s3://{BUCKET}/model.tar.gz"


@pytest.mark.costly("starts a local SageMaker of its own")
def test_s3_that_does_not_answer_elsewhere_is_unavailable(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    dead = f"http://127.0.0.1:{free_port()}"
    with run_stand(tmp_path, environment=keys, s3_endpoint_url=dead) as stand:
        code, message = refused(stand.client("s3").list_buckets)
    assert code == "ServiceUnavailable"
    assert dead in message


def test_cloudwatch_is_translated_both_ways(stand: Stand) -> None:
    cloudwatch = stand.client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="errors",
        MetricName="Errors",
        Namespace="Mine",
        Statistic="Sum",
        Period=60,
        Threshold=1.5,
        EvaluationPeriods=2,
        ComparisonOperator="GreaterThanThreshold",
        Dimensions=[{"Name": "Where", "Value": "hé"}],
    )
    cloudwatch.set_alarm_state(AlarmName="errors", StateValue="ALARM", StateReason="by hand")
    alarm = cloudwatch.describe_alarms(StateValue="ALARM")["MetricAlarms"][0]
    assert (alarm["AlarmName"], alarm["Threshold"], alarm["EvaluationPeriods"]) == ("errors", 1.5, 2)
    assert alarm["Dimensions"] == [{"Name": "Where", "Value": "hé"}]
    assert alarm["StateUpdatedTimestamp"].tzinfo is not None
    assert refused(cloudwatch.set_alarm_state, AlarmName="no", StateValue="OK", StateReason="")[0] in (
        "ResourceNotFound",
        "ResourceNotFoundException",
    )


@pytest.mark.costly("hundreds of calls")
def test_faults_and_rates_meet_operations(stand: Stand) -> None:
    sagemaker = stand.client("sagemaker")
    for kind, code in (
        ("throttle", "ThrottlingException"),
        ("internal_failure", "InternalFailure"),
        ("unavailable", "ServiceUnavailable"),
        ("expired_token", "ExpiredTokenException"),
    ):
        stand.put("faults", [{"kind": kind, "operation": "ListModels"}])
        sagemaker.list_endpoints()
        assert refused(sagemaker.list_models)[0] == code
        sagemaker.list_models()
    stand.put("rates", {"ListModels": 0.001})
    sagemaker.list_models()
    assert refused(sagemaker.list_models) == ("ThrottlingException", "Rate exceeded")
    sagemaker.list_endpoints()
    stand.advance(1000)
    sagemaker.list_models()
    stand.put("rates", {})
    for wrong in ([{"kind": "drop", "operation": "ListModels"}], [{"kind": "none"}], [{"sort": "drop"}]):
        assert httpx.put(f"{stand.url}/_local/faults", json=wrong, headers=ADMIN).status_code == 400


@pytest.mark.costly("starts a local SageMaker of its own")
def test_quotas_bound_instances(tmp_path: Any) -> None:
    with run_stand(tmp_path, quotas={"ml.g5.12xlarge": 2}) as stand:
        stand.endpoint("two", InitialInstanceCount=2)
        sagemaker = stand.client("sagemaker")
        code, message = refused(sagemaker.create_endpoint, EndpointName="more", EndpointConfigName="two")
        assert code == "ResourceLimitExceeded"
        assert "'ml.g5.12xlarge for endpoint usage' is 2 Instances" in message
        change = [{"VariantName": "main", "DesiredInstanceCount": 1}]
        sagemaker.update_endpoint_weights_and_capacities(
            EndpointName="two", DesiredWeightsAndCapacities=change
        )
        sagemaker.get_waiter("endpoint_in_service").wait(EndpointName="two", WaiterConfig={"Delay": 0.1})
        variant = sagemaker.describe_endpoint(EndpointName="two")["ProductionVariants"][0]
        assert (variant["CurrentInstanceCount"], variant["DesiredInstanceCount"]) == (1, 1)


def test_an_archive_cannot_leave_its_folder(stand: Stand, tmp_path: Any) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        item = tarfile.TarInfo("../../escaped")
        item.size = 1
        archive.addfile(item, io.BytesIO(b"x"))
    stand.upload("evil/none.tar.gz", tmp_path)
    stand.client("s3").put_object(Bucket=BUCKET, Key="evil/model.tar.gz", Body=packed.getvalue())
    sagemaker = stand.client("sagemaker")
    container = {"Image": IMAGE, "ModelDataUrl": f"s3://{BUCKET}/evil/model.tar.gz"}
    sagemaker.create_model(ModelName="evil", ExecutionRoleArn=ROLE, PrimaryContainer=container)
    stand.endpoint("evil")
    stand.base("evil", "evil", "evil", settle=False)
    found = stand.settled("evil")
    assert (found["InferenceComponentStatus"], "outside" in found["FailureReason"]) == ("Failed", True)
    assert not list(stand.work.parent.rglob("escaped"))
