"""Smoke test on vLLM or a server with its routes: loads the staged adapter and unloads it again."""

from __future__ import annotations

import logging
from urllib.parse import unquote, urlsplit

import httpx

from contracts.adapters.reference import AdapterRef
from controlplane.adapters.smoke.base import TIMEOUT, CopyUnableError, Prober, ScoredCompletion, complete
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from controlplane.platform.http.tls import tls_context

logger = logging.getLogger(__name__)


class OpenAIHttpProber(Prober):
    """Loads the adapter under a name without a route, since the staged files are temporary."""

    def __init__(self, copy: Copy, base_model: BaseModel, ref: AdapterRef) -> None:
        """Raises CopyUnableError if the copy loads no adapters at runtime."""
        if not copy.loads_adapters:
            raise CopyUnableError("it does not load adapters at runtime (loads_adapters is off)")
        self._client = httpx.Client(
            base_url=copy.url,
            headers=copy.request_headers,
            timeout=TIMEOUT,
            trust_env=False,
            verify=tls_context(),
        )
        self._base, self._name, self._uri = base_model.served_name, f"{ref.name}.check", ref.uri
        self._copy, self._loaded = copy.pk, False

    def ask(self, *, adapted: bool) -> ScoredCompletion:
        if adapted and not self._loaded:
            self._load()
        return complete(self._client, {"model": self._name if adapted else self._base}, adapted=adapted)

    def __exit__(self, *_: object) -> None:
        try:
            if self._loaded:
                self._unload()
        except httpx.HTTPError as error:
            logger.warning("copy %s did not unload %s: %s", self._copy, self._name, error)
        finally:
            self._client.close()

    def _load(self) -> None:
        parts = urlsplit(self._uri)
        path = unquote(parts.path).rstrip("/") if parts.scheme == "file" else self._uri
        try:
            # A failed attempt may have left its own files loaded under this name.
            self._unload()
            answer = self._client.post(
                "/v1/load_lora_adapter", json={"lora_name": self._name, "lora_path": path}
            )
        except httpx.HTTPError as error:
            raise CopyUnableError(f"it does not answer ({error})") from error
        if not answer.is_success:
            raise CopyUnableError(f"it did not load the adapter ({answer.status_code}: {answer.text[:200]})")
        self._loaded = True

    def _unload(self) -> None:
        self._client.post("/v1/unload_lora_adapter", json={"lora_name": self._name})
