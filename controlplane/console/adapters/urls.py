"""URLs of adapters, the playground and source credentials."""

from __future__ import annotations

from django.urls import path

from controlplane.console.adapters.views import (
    adapter_list,
    adapter_traffic,
    adapters,
    aliases,
    playground,
    source_credentials,
    traffic,
    uploads,
    versions,
)

tenant_urls = [
    path("adapters/", adapter_list.index, name="adapters"),
    path("adapters/shares", adapter_traffic.shares, name="adapter-shares"),
    path("adapters/new", adapters.register, name="adapter-register"),
    path("adapters/new/check", adapters.register_check, name="adapter-register-check"),
    path("adapters/<slug:name>/", adapters.detail, name="adapter"),
    path("adapters/<slug:name>/traffic", adapter_traffic.part, name="adapter-traffic"),
    path("adapters/<slug:name>/v<int:number>/status", adapters.version_status, name="version-status"),
    path("adapters/<slug:name>/aliases", adapters.alias_set, name="alias-set"),
    path("adapters/<slug:name>/aliases/<slug:alias>/delete", adapters.alias_delete, name="alias-delete"),
    path("adapters/<slug:name>/aliases/<slug:alias>/", aliases.detail, name="alias"),
    path("adapters/<slug:name>/aliases/<slug:alias>/rollback", aliases.rollback, name="alias-rollback"),
    path("adapters/<slug:name>/aliases/<slug:alias>/split", traffic.split, name="alias-split"),
    path("adapters/<slug:name>/aliases/<slug:alias>/canary", traffic.canary, name="alias-canary"),
    path("adapters/<slug:name>/aliases/<slug:alias>/arms", aliases.arms, name="alias-arms"),
    path("adapters/<slug:name>/aliases/<slug:alias>/fallback", traffic.alias_fallback, name="alias-fallback"),
    path("adapters/<slug:name>/aliases/<slug:alias>/rollouts", aliases.start, name="rollout-start"),
    path(
        "adapters/<slug:name>/aliases/<slug:alias>/rollouts/<int:rollout>",
        aliases.status,
        name="rollout-status",
    ),
    path(
        "adapters/<slug:name>/aliases/<slug:alias>/rollouts/<int:rollout>/<slug:action>",
        aliases.act,
        name="rollout-act",
    ),
    path("adapters/<slug:name>/v<int:number>/", versions.detail, name="version"),
    path("adapters/<slug:name>/v<int:number>/lineage", versions.update, name="version-update"),
    path("adapters/<slug:name>/v<int:number>/delete", versions.delete, name="version-delete"),
    path("adapters/<slug:name>/v<int:number>/restore", versions.restore, name="version-restore"),
    path("adapters/<slug:name>/fallback", traffic.adapter_fallback, name="adapter-fallback"),
    path("adapters/<slug:name>/update", adapters.update, name="adapter-update"),
    path("adapters/<slug:name>/restore", adapters.restore, name="adapter-restore"),
    path("adapters/<slug:name>/purge", adapters.purge, name="adapter-purge"),
    path("adapters/<slug:name>/pin", adapters.pin, name="adapter-pin"),
    path("adapters/<slug:name>/rollback", adapters.rollback, name="adapter-rollback"),
    path("adapters/<slug:name>/delete", adapters.delete, name="adapter-delete"),
    path("uploads/<slug:upload_id>/delete", uploads.delete, name="upload-delete"),
    path("source-credentials/", source_credentials.index, name="source-credentials"),
    path("source-credentials/<slug:name>/delete", source_credentials.delete, name="source-credential-delete"),
    path("playground/", playground.index, name="playground"),
    path("playground/key", playground.key, name="playground-key"),
    path("playground/models", playground.models, name="playground-models"),
    path("playground/prices", playground.prices, name="playground-prices"),
]
