"""The bundled worker: the adapter goes along as a reference into the store, as the gateway sends it."""

from __future__ import annotations

import httpx
from django.conf import settings

from contracts.adapters.reference import AdapterRef
from controlplane.adapters.smoke.base import TIMEOUT, Prober, ScoredCompletion, complete
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from controlplane.platform.http.tls import tls_context


class WorkerProber(Prober):
    """Registers no name, so nothing is left to unload."""

    def __init__(self, copy: Copy, base_model: BaseModel, ref: AdapterRef) -> None:
        headers = {"Authorization": f"Bearer {settings.GRAFTWORK.fleet_token}"}
        # Copies stand in the operator's own network; a proxy of the environment's is not meant for them.
        self._client = httpx.Client(
            base_url=copy.url, headers=headers, timeout=TIMEOUT, trust_env=False, verify=tls_context()
        )
        self._base = {"model": base_model.served_name}
        self._adapted = {"model": ref.name, "adapter": ref.to_dict()}

    def ask(self, *, adapted: bool) -> ScoredCompletion:
        model = self._adapted if adapted else self._base
        return complete(self._client, {**model, "tenant": "graftwork-validation"}, adapted=adapted)

    def __exit__(self, *_: object) -> None:
        self._client.close()
