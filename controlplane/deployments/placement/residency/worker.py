"""Residency of the bundled worker: adapters by reference and digest, at `/resident`."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.placement.residency.base import LOAD_SECONDS, CopyClient, Memory, Resident
from controlplane.deployments.provisioners.base import ProvisioningError


class WorkerResidency:
    """Client of `worker_engine.residency`."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._client = CopyClient(url, headers)

    def memory(self) -> Memory:
        try:
            answer = self._client.call("GET", "/resident")
        except ProvisioningError as error:
            if error.code != "404":
                raise
            text = f"{self._client.url} is a worker without adapter placement: upgrade it"
            raise ProvisioningError(text, code=error.code) from error
        try:
            body = answer.json()
            adapters = {
                item["sha256"][:12]: Resident(
                    item["tier"],
                    "placement" in item["pinned"],
                    item["sha256"],
                    item["bytes"],
                    item["requests"],
                    item["idle_seconds"],
                )
                for item in body["adapters"]
            }
            return Memory(adapters, body["bytes"], body["max_bytes"], body["pinned_bytes"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProvisioningError(self._strange) from error

    def on_disk(self) -> frozenset[str]:
        try:
            answer = self._client.call("GET", "/resident/disk")
        except ProvisioningError as error:
            # A worker of an earlier release has no such route.
            if error.code != "404":
                raise
            return frozenset()
        try:
            return frozenset(str(sha256)[:12] for sha256 in answer.json()["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProvisioningError(self._strange) from error

    def pin(self, ref: AdapterRef) -> None:
        self._client.call("POST", "/resident", {"adapter": ref.to_dict()}, seconds=LOAD_SECONDS)

    def unpin(self, ref: AdapterRef) -> None:
        self._client.call("POST", f"/resident/{ref.sha256}/unpin")

    def evict(self, ref: AdapterRef) -> bool:
        answer = self._client.call("DELETE", f"/resident/{ref.sha256}")
        try:
            return bool(answer.json()["gone"])
        except (ValueError, KeyError, TypeError) as error:
            # Transient, since the next run reads whether the adapter has left.
            raise ProvisioningError(self._strange, transient=True) from error

    @property
    def _strange(self) -> str:
        return f"{self._client.url}/resident returned an unexpected response: check the worker's release"

    def close(self) -> None:
        self._client.close()
