"""AWS account of a provisioner: clients without retries, whose errors say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.errors import (
    is_absent,
    is_there_already,
    provisioning_error,
)
from controlplane.deployments.provisioners.sagemaker.pace import PATIENCE, Pace
from controlplane.deployments.provisioners.sagemaker.session import aws_session
from controlplane.platform.aws_time_limit import heed_time_limit

# The reconciler itself backs off, and holds a lease meanwhile, so its clients must not retry. Only throttled
# calls are repeated, within bounds (`pace`).
_CONFIG: Final = Config(
    connect_timeout=3,
    read_timeout=20,
    retries={"mode": "standard", "total_max_attempts": 1},
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
_UPLOADS: Final = _CONFIG.merge(
    Config(read_timeout=60, retries={"mode": "standard", "total_max_attempts": 2})
)


class Account:
    """An AWS account; `sagemaker` and `s3` are boto3 clients of one session."""

    def __init__(self, session: Any, *, endpoint_url: str | None, patience: float = PATIENCE) -> None:
        """`patience`: seconds that all calls together may wait because of throttling."""
        self._pace = Pace(patience)
        sagemaker = session.client("sagemaker", endpoint_url=endpoint_url, config=_CONFIG)
        s3 = session.client("s3", endpoint_url=endpoint_url, config=_UPLOADS)
        self.sagemaker, self.s3 = heed_time_limit(sagemaker), heed_time_limit(s3)

    @classmethod
    def from_target(cls, target: Target) -> Self:
        """Return the account of the process's default credentials, or of the target's role assumed with them.

        Raises:
            ProvisioningError: no credentials exist, or the role cannot be assumed.
        """
        url = target.endpoint_url or None
        # A missing profile or region is already refused here.
        with aws_answers("session", target.name):
            session = aws_session(region_name=target.region or None)
            if not target.assume_role_arn:
                return cls(session, endpoint_url=url)
        sts = heed_time_limit(session.client("sts", endpoint_url=url, config=_CONFIG))
        try:
            with aws_answers("assume_role", target.assume_role_arn):
                answer = sts.assume_role(RoleArn=target.assume_role_arn, RoleSessionName="graftwork")
        finally:
            sts.close()
        found = answer["Credentials"]
        assumed = aws_session(
            aws_access_key_id=found["AccessKeyId"],
            aws_secret_access_key=found["SecretAccessKey"],
            aws_session_token=found["SessionToken"],
            region_name=target.region,
        )
        return cls(assumed, endpoint_url=url)

    def close(self) -> None:
        """Close connections."""
        self.sagemaker.close()
        self.s3.close()

    def call(self, operation: str, about: str, **arguments: Any) -> dict[str, Any]:
        """Call SageMaker's API once. Raises ProvisioningError."""

        def answer() -> dict[str, Any]:
            with aws_answers(operation, about):
                response: dict[str, Any] = getattr(self.sagemaker, operation)(**arguments)
                return response

        return self._pace.keep(operation, answer)

    def make(self, operation: str, about: str, **arguments: Any) -> None:
        """Create a resource; one that already exists counts as created.

        The answer of an earlier call may have been lost, or another process was faster.
        """
        try:
            self.call(operation, about, **arguments)
        except ProvisioningError as error:
            if not is_there_already(error.__cause__):
                raise

    def take_away(self, operation: str, about: str, **arguments: Any) -> None:
        """Delete a resource; one that does not exist counts as deleted."""
        try:
            self.call(operation, about, **arguments)
        except ProvisioningError as error:
            if not is_absent(error.__cause__):
                raise

    def find(self, operation: str, about: str, **arguments: Any) -> dict[str, Any] | None:
        """Return a resource's description; None if it does not exist."""
        try:
            return self.call(operation, about, **arguments)
        except ProvisioningError as error:
            if is_absent(error.__cause__):
                return None
            raise

    def pages(self, operation: str, key: str, about: str, **arguments: Any) -> list[dict[str, Any]]:
        """Return a list's items, with one call per page."""

        def listed() -> list[dict[str, Any]]:
            with aws_answers(operation, about):
                pages = self.sagemaker.get_paginator(operation).paginate(**arguments)
                return [item for page in pages for item in page[key]]

        return self._pace.keep(operation, listed)

    def tags(self, arn: str) -> dict[str, str]:
        """Return a resource's tags; {} if it does not exist."""
        try:
            listed = self.pages("list_tags", "Tags", arn, ResourceArn=arn)
        except ProvisioningError as error:
            if not is_absent(error.__cause__):
                raise
            return {}
        return {item["Key"]: item["Value"] for item in listed}


@contextmanager
def aws_answers(operation: str, about: str) -> Iterator[None]:
    """Raise AWS's errors and missing answers as ProvisioningError."""
    try:
        yield
    except (ClientError, BotoCoreError, Boto3Error) as error:
        raise provisioning_error(error, operation=operation, about=about) from error
