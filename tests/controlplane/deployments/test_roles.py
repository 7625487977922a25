"""Credentials of a reconcile: the process's own, or fresh ones of the target's role each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from moto.server import ThreadedMotoServer

from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from tests.conftest import free_port
from tests.sagemaker_local.stand import KEY, REGION, ROLE


@pytest.fixture(scope="module")
def sts() -> Iterator[str]:
    """moto's, which knows whose a key is."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=(port := free_port()), verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


def caller(target: Target) -> tuple[str, str]:
    """Return the ARN and the access key that a target's calls are made with."""
    with closing(ServicesAccount.from_target(target)) as account:
        answer = account.ask("sts", "get_caller_identity", "me")
        return answer["Arn"], account.client("sts")._request_signer._credentials.access_key


def test_a_targets_role_is_who_calls(sts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY["secret_key"])
    values = {"kind": "sagemaker", "region": REGION, "endpoint_url": sts, "role_arn": ROLE}
    arn, key = caller(Target(name="own", **values))
    assert "assumed-role" not in arn
    assert key == KEY["access_key"]
    ours = Target(name="ours", **values, assume_role_arn="arn:aws:iam::123456789012:role/deployer")
    theirs = Target(name="theirs", **values, assume_role_arn="arn:aws:iam::210987654321:role/graftwork")
    (first, key), (second, other) = caller(ours), caller(theirs)
    assert first == "arn:aws:sts::123456789012:assumed-role/deployer/graftwork"
    assert second == "arn:aws:sts::210987654321:assumed-role/graftwork/graftwork"
    again = caller(ours)
    assert again[0] == first
    assert len({key, other, again[1], KEY["access_key"]}) == 4, "keys are asked for at each look"
