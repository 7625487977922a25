"""An AWS account with clients for further services, which are created at the first call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from botocore.config import Config

from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.account import Account, aws_answers
from controlplane.deployments.provisioners.sagemaker.pace import PATIENCE
from controlplane.platform.aws_time_limit import heed_time_limit

# The reconciler itself backs off, and holds a lease meanwhile, so its clients must not retry.
_CONFIG: Final = Config(
    connect_timeout=3, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 1}
)
_HOMES: Final = {"pricing": "us-east-1", "savingsplans": "us-east-1"}
"""Regions of services that have endpoints in few regions."""
_MOST_PAGES: Final = 100


class ServicesAccount(Account):
    """An account with a client for any service, by its name."""

    def __init__(self, session: Any, *, endpoint_url: str | None, patience: float = PATIENCE) -> None:
        super().__init__(session, endpoint_url=endpoint_url, patience=patience)
        self._session, self._endpoint_url = session, endpoint_url
        self._services: dict[str, Any] = {}

    def close(self) -> None:
        super().close()
        for client in self._services.values():
            client.close()

    def client(self, service: str) -> Any:
        """Return the service's boto3 client."""
        if service not in self._services:
            made = self._session.client(
                service, region_name=_HOMES.get(service), endpoint_url=self._endpoint_url, config=_CONFIG
            )
            self._services[service] = heed_time_limit(made)
        return self._services[service]

    def ask(self, service: str, operation: str, about: str, **arguments: Any) -> dict[str, Any]:
        """Call a service's API once. Raises ProvisioningError."""

        def answer() -> dict[str, Any]:
            with aws_answers(operation, about):
                response: dict[str, Any] = getattr(self.client(service), operation)(**arguments)
                return response

        return self._pace.keep(f"{service} {operation}", answer)

    def every_page(
        self, service: str, operation: str, about: str, *, next_field: str, **arguments: Any
    ) -> Iterator[dict[str, Any]]:
        """Call a list operation once for each page. `next_field`: the token of the next page.

        Raises:
            ProvisioningError: a call failed, or there are more than 100 pages.
        """
        following: dict[str, str] = {}
        for _ in range(_MOST_PAGES):
            page = self.ask(service, operation, about, **arguments, **following)
            yield page
            if not page.get(next_field):
                return
            following = {next_field: page[next_field]}
        raise ProvisioningError(f"{operation} of {about} has more than {_MOST_PAGES} pages")
