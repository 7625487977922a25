"""Signatures compared with botocore's own over random requests: every header and every byte."""

from __future__ import annotations

import base64
import datetime
from urllib.parse import quote

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as TheirCredentials
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.http.aws.bearer_token import PREFIX, BearerTokens
from gateway.http.aws.sigv4 import Credentials, Signer

NOWS = st.integers(0, 4_000_000_000)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20)
SEGMENT = st.one_of(
    TEXT.map(lambda text: quote(text, safe="~")), st.sampled_from([".", "..", "", "a b", "é", "%2F"])
)
PATHS = st.lists(SEGMENT, max_size=30).map(lambda parts: "/" + "/".join(parts))
QUERIES = st.lists(st.tuples(TEXT, TEXT), max_size=6).map(
    lambda pairs: "&".join(f"{quote(name)}={quote(value)}" for name, value in pairs)
)
HOSTS = st.sampled_from(
    [
        "https://runtime.sagemaker.eu-central-1.amazonaws.com",
        "http://127.0.0.1:8123",
        "http://h:80",
        "https://h:443",
        "https://h:80",
        "http://[::1]:99",
        "https://Runtime.SageMaker.Example",
    ]
)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True).filter(
    lambda name: (
        name.lower() not in ("date", "host", "authorization") and not name.lower().startswith("x-amz-")
    )
)
HEADERS = st.dictionaries(
    NAMES.map(str.lower) | st.sampled_from(["user-agent", "traceparent", "te"]),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from(" \t")),
    max_size=8,
)
KEYS = st.builds(
    Credentials,
    st.from_regex(r"[A-Z0-9]{16,24}", fullmatch=True),
    st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=64),
    st.none()
    | st.just("")
    | st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=900),
)
REGIONS = st.sampled_from(["us-east-1", "eu-central-1", "cn-north-1"])


class Clock:
    """botocore asks this module-level function for the time."""

    def __init__(self, now: float) -> None:
        self._now = now

    def __call__(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._now, datetime.UTC)


def botocore_credentials(credentials: Credentials) -> TheirCredentials:
    return TheirCredentials(credentials.access_key, credentials.secret_key, credentials.token)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["POST", "GET", "put"]),
    HOSTS,
    PATHS,
    QUERIES,
    HEADERS,
    st.binary(max_size=300),
    KEYS,
    REGIONS,
    NOWS,
)
@example("POST", "http://h", "", "", {}, b"", Credentials("A", "s"), "us-east-1", 0)
@example(
    "POST",
    "http://h",
    "/" + "é/" * 4000,
    "b=2&a=1&b=1&&c",
    {"a": "  x   y "},
    b"x",
    Credentials("A", "s", "t"),
    "us-east-1",
    1,
)
@pytest.mark.costly("a property over many requests")
def test_signatures_are_botocores(
    method: str,
    host: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes,
    credentials: Credentials,
    region: str,
    now: int,
) -> None:
    url = host + path + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, headers=headers, data=body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", Clock(now))
        botocore.auth.SigV4Auth(botocore_credentials(credentials), "sagemaker", region).add_auth(request)
    ours = Signer("sagemaker", region).headers(method, url, headers, body, credentials, now=now)
    expected = {name: value for name, value in request.headers.items() if name not in headers}
    assert ours == expected


def test_one_signer_follows_days_and_rotated_secrets() -> None:
    signer = Signer("sagemaker", "us-east-1")
    for secret in ("one", "two", "one"):
        for now in (0, 86_399, 86_400, 5):
            credentials = Credentials("AKID", secret)
            fresh = Signer("sagemaker", "us-east-1")
            ask = ("POST", "https://h/endpoints/e/invocations", {"content-type": "application/json"}, b"{}")
            assert signer.headers(*ask, credentials, now=now) == fresh.headers(*ask, credentials, now=now)


@settings(max_examples=200, deadline=None)
@given(KEYS, REGIONS, NOWS)
def test_bearer_tokens_are_the_presigned_request_that_botocore_makes(
    credentials: Credentials, region: str, now: int
) -> None:
    request = AWSRequest(
        method="POST",
        url="https://sagemaker.amazonaws.com/",
        headers={"host": "sagemaker.amazonaws.com"},
        params={"Action": "CallWithBearerToken"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", Clock(now))
        botocore.auth.SigV4QueryAuth(
            botocore_credentials(credentials), "sagemaker", region, expires=3600
        ).add_auth(request)
    token = BearerTokens(region).token(credentials, now=now)
    assert token.startswith(PREFIX)
    text = base64.b64decode(token.removeprefix(PREFIX)).decode()
    assert "https://" + text == request.url + "&Version=1"


def test_a_bearer_token_is_kept_for_ten_minutes_and_made_anew_for_new_credentials() -> None:
    tokens = BearerTokens("us-east-1")
    old, new = Credentials("A", "s", "t"), Credentials("A", "s", "u")
    first = tokens.token(old, now=1000)
    assert tokens.token(old, now=1599) == first
    assert tokens.token(old, now=1600) != first
    assert tokens.token(new, now=1601) != tokens.token(old, now=1601)
    assert tokens.token(old, now=500) != first, "a clock that was set back must not keep a token for long"


def test_secrets_stay_out_of_reprs() -> None:
    assert "hush" not in repr(Credentials("AKID", "hush", "hush-token"))
