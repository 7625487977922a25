"""URLs of adapters, the playground and source credentials."""

from __future__ import annotations

from typing import Final

from django.urls import path

from controlplane.console.adapters.views import (
    adapter_list,
    adapter_traffic,
    adapters,
    aliases,
    playground,
    source_credentials,
    traffic,
    versions,
)

_ADAPTER: Final = "adapters/<slug:name>/"
_VERSION: Final = f"{_ADAPTER}v<int:number>/"
_ALIAS: Final = f"{_ADAPTER}aliases/<slug:alias>/"
_ROLLOUT: Final = f"{_ALIAS}rollouts/<int:rollout>"

tenant_urls = [
    path("adapters/", adapter_list.index, name="adapters"),
    path("adapters/shares", adapter_traffic.shares, name="adapter-shares"),
    path("adapters/new", adapters.register, name="adapter-register"),
    path("adapters/new/check", adapters.register_check, name="adapter-register-check"),
    path(_ADAPTER, adapters.detail, name="adapter"),
    path(f"{_ADAPTER}traffic", adapter_traffic.part, name="adapter-traffic"),
    path(f"{_VERSION}status", adapters.version_status, name="version-status"),
    path(f"{_ADAPTER}aliases", adapters.alias_set, name="alias-set"),
    path(f"{_ALIAS}delete", adapters.alias_delete, name="alias-delete"),
    path(_ALIAS, aliases.detail, name="alias"),
    path(f"{_ALIAS}rollback", aliases.rollback, name="alias-rollback"),
    path(f"{_ALIAS}split", traffic.split, name="alias-split"),
    path(f"{_ALIAS}canary", traffic.canary, name="alias-canary"),
    path(f"{_ALIAS}arms", aliases.arms, name="alias-arms"),
    path(f"{_ALIAS}fallback", traffic.fallback, name="alias-fallback"),
    path(f"{_ALIAS}rollouts", aliases.start, name="rollout-start"),
    path(_ROLLOUT, aliases.status, name="rollout-status"),
    path(f"{_ROLLOUT}/<slug:action>", aliases.act, name="rollout-act"),
    path(_VERSION, versions.detail, name="version"),
    path(f"{_VERSION}lineage", versions.update, name="version-update"),
    path(f"{_VERSION}delete", versions.delete, name="version-delete"),
    path(f"{_VERSION}restore", versions.restore, name="version-restore"),
    path(f"{_ADAPTER}fallback", traffic.fallback, name="adapter-fallback"),
    path(f"{_ADAPTER}update", adapters.update, name="adapter-update"),
    path(f"{_ADAPTER}restore", adapters.restore, name="adapter-restore"),
    path(f"{_ADAPTER}purge", adapters.purge, name="adapter-purge"),
    path(f"{_ADAPTER}pin", adapters.pin, name="adapter-pin"),
    path(f"{_ADAPTER}rollback", adapters.rollback, name="adapter-rollback"),
    path(f"{_ADAPTER}delete", adapters.delete, name="adapter-delete"),
    path("uploads/<slug:upload_id>/delete", adapters.upload_delete, name="upload-delete"),
    path("source-credentials/", source_credentials.index, name="source-credentials"),
    path("source-credentials/<slug:name>/delete", source_credentials.delete, name="source-credential-delete"),
    path("playground/", playground.index, name="playground"),
    path("playground/key", playground.key, name="playground-key"),
    path("playground/models", playground.models, name="playground-models"),
    path("playground/prices", playground.prices, name="playground-prices"),
]
