"""Residency of servers such as vLLM: adapters by engine name, through vLLM's LoRA routes.

vLLM moves registered adapters between device and host by itself and has no route that pins. Its metrics name
those with running requests, which are on the device; of the others it reports no tier. A pin therefore means:
registered ahead of requests, and again if it has disappeared.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from contracts.adapters.reference import AdapterRef
from contracts.vllm_metrics import VllmMetrics
from controlplane.deployments.placement.quarantined import check_not_quarantined
from controlplane.deployments.placement.residency.base import LOAD_SECONDS, CopyClient, Memory, Resident
from controlplane.deployments.provisioners.base import ProvisioningError


class OpenAIHttpResidency:
    """Client of vLLM's dynamic LoRA routes."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._client = CopyClient(url, headers)

    def memory(self) -> Memory:
        answer = self._client.call("GET", "/v1/models")
        try:
            names = [str(item["id"]) for item in answer.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ProvisioningError(
                f"{self._client.url}/v1/models did not return a list of models"
            ) from error
        running = self._running()
        return Memory(
            {name: Resident("device" if name in running else "server", pinned=True) for name in names}
        )

    def _running(self) -> frozenset[str]:
        """Return the adapters with running requests; none of a server without vLLM's metrics."""
        try:
            return VllmMetrics.parse(self._client.call("GET", "/metrics").content).running
        except (ProvisioningError, ValueError):
            return frozenset()

    def on_disk(self) -> frozenset[str]:
        return frozenset()

    def pin(self, ref: AdapterRef) -> None:
        check_not_quarantined(ref.name)
        parts = urlsplit(ref.uri)
        path = unquote(parts.path).rstrip("/") if parts.scheme == "file" else ref.uri
        body = {"lora_name": ref.name, "lora_path": path}
        try:
            self._client.call("POST", "/v1/load_lora_adapter", body, seconds=LOAD_SECONDS)
        except ProvisioningError as error:
            if "already" not in str(error):
                raise

    def unpin(self, ref: AdapterRef) -> None:
        """Do nothing: vLLM decides when a registered adapter leaves the device."""

    def evict(self, ref: AdapterRef) -> bool:
        try:
            self._client.call("POST", "/v1/unload_lora_adapter", {"lora_name": ref.name})
        except ProvisioningError as error:
            if error.code != "404":
                raise
        return True

    def close(self) -> None:
        self._client.close()
