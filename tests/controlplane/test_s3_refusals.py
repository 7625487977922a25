"""Refusals of S3, or its silence, become a message that says what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.stub import Stubber

from controlplane.artifacts.store import s3_advice
from controlplane.artifacts.store.refusals import SILENT, UNKNOWN
from controlplane.artifacts.store.s3 import S3Store
from controlplane.errors import UnavailableError
from tests.conftest import ROOT, free_port

CALLERS = (
    "controlplane/artifacts/store/s3.py",
    "controlplane/adapters/sources/bucket.py",
    "controlplane/catalog/checkpoint_sources/bucket.py",
)
OF_TRANSFERS = {
    "upload_fileobj": {
        "put_object",
        "create_multipart_upload",
        "upload_part",
        "complete_multipart_upload",
        "abort_multipart_upload",
    },
    "copy": {
        "head_object",
        "copy_object",
        "create_multipart_upload",
        "upload_part_copy",
        "complete_multipart_upload",
        "abort_multipart_upload",
    },
}
"""What boto3 calls for its own methods."""
UNDECLARED = (
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "AuthorizationHeaderMalformed",
    "BadDigest",
    "EntityTooLarge",
    "ExpiredToken",
    "IllegalLocationConstraintException",
    "IncompleteBody",
    "InternalError",
    "InvalidAccessKeyId",
    "InvalidArgument",
    "InvalidBucketName",
    "InvalidPart",
    "InvalidPartOrder",
    "InvalidSecurity",
    "InvalidToken",
    "KMS.DisabledException",
    "KMS.KMSInvalidStateException",
    "NoSuchBucket",
    "NoSuchUpload",
    "NotImplemented",
    "NotSignedUp",
    "OperationAborted",
    "PermanentRedirect",
    "Redirect",
    "RequestTimeTooSkewed",
    "RequestTimeout",
    "ServiceUnavailable",
    "SignatureDoesNotMatch",
    "SlowDown",
    "ThrottlingException",
    "301",
    "307",
    "400",
    "403",
    "404",
    "500",
    "503",
)
"""Of S3's list of error codes those that botocore names for no operation, and HEAD's bare statuses."""


def called() -> set[str]:
    """Operations, as boto3 spells them, that the files above use."""
    words: set[str] = set()
    for name in CALLERS:
        words |= set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)*\b", (ROOT / name).read_text()))
    for method, operations in OF_TRANSFERS.items():
        words |= operations if method in words else set()
    return words


def test_every_error_that_a_call_of_ours_may_answer_has_a_sentence() -> None:
    model = botocore.session.Session().get_service_model("s3")
    ours = [name for name in model.operation_names if xform_name(name) in called()]
    assert set(ours) >= {"GetObject", "HeadObject", "ListObjectsV2", "PutObject", "CopyObject"}
    codes = {shape.name for name in ours for shape in model.operation_model(name).error_shapes}
    assert {"InvalidObjectState", "NoSuchKey"} <= codes
    told = {code: s3_advice(_error(code)) for code in codes | set(UNDECLARED)}
    assert [code for code, advice in told.items() if advice == UNKNOWN] == []
    assert s3_advice(_error("SomethingNew")) == UNKNOWN


def _error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": ""}}, "GetObject")


@pytest.fixture
def client() -> Iterator[Any]:
    made = boto3.client(
        "s3",
        region_name="eu-central-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        endpoint_url=f"http://127.0.0.1:{free_port()}",
        config=Config(retries={"total_max_attempts": 1}),
    )
    yield made
    made.close()


@pytest.mark.parametrize(
    ("code", "status", "sentence"),
    [
        ("InvalidObjectState", 403, "restore it"),
        ("KMS.DisabledException", 400, "enable the key"),
        ("AccessDenied", 403, "allow the control plane's role this"),
        ("403", 403, "allow the control plane's role this"),
        ("NoSuchBucket", 404, "create it, or name another"),
        ("301", 301, "AWS_DEFAULT_REGION"),
        ("ExpiredToken", 400, "renew them"),
        ("SlowDown", 503, "try again in a moment"),
    ],
)
def test_a_refusal_says_what_to_do_and_what_s3_said(
    client: Any, code: str, status: int, sentence: str
) -> None:
    store = S3Store(client, bucket="kept", prefix="here")
    with Stubber(client) as stub:
        stub.add_client_error("get_object", code, "its words", status)
        with pytest.raises(UnavailableError) as caught, store.open("adapters/x"):
            pass
    text = str(caught.value)
    assert text.startswith("S3 refused to read adapters/x in bucket kept: ")
    assert sentence in text
    assert f"({code})" in text
    assert "its words" in text


def test_silence_is_told_apart_from_missing_credentials(
    client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UnavailableError, match=re.escape(SILENT)):
        S3Store(client, bucket="kept", prefix="").size("x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    nobody = boto3.Session(region_name="eu-central-1").client("s3")
    with pytest.raises(UnavailableError, match="provide them by environment, profile") as caught:
        S3Store(nobody, bucket="kept", prefix="").size("x")
    assert isinstance(caught.value.__cause__, NoCredentialsError)
    assert issubclass(NoCredentialsError, BotoCoreError)
    nobody.close()
