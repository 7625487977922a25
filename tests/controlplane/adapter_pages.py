"""Pages of adapters, and the permission that each needs; `test_isolation` walks them."""

from __future__ import annotations

ADAPTER_PAGES: dict[str, dict[str, str]] = {
    "adapters": {"get": "adapters.read"},
    "adapter-register": {"get": "adapters.write", "post": "adapters.write"},
    "adapter": {"get": "adapters.read"},
    "adapter-traffic": {"get": "usage.read"},
    "version-status": {"get": "adapters.read"},
    "version": {"get": "adapters.read"},
    "version-update": {"post": "adapters.write"},
    "version-delete": {"post": "adapters.write"},
    "version-restore": {"post": "adapters.write"},
    "alias": {"get": "adapters.read"},
    "alias-set": {"post": "adapters.write"},
    "alias-delete": {"post": "adapters.write"},
    "alias-rollback": {"post": "adapters.write"},
    "alias-split": {"post": "adapters.write"},
    "alias-fallback": {"post": "adapters.write"},
    "adapter-fallback": {"post": "adapters.write"},
    "rollout-start": {"post": "adapters.write"},
    "rollout-status": {"get": "adapters.read"},
    "rollout-act": {"post": "adapters.write"},
    "adapter-update": {"post": "adapters.write"},
    "adapter-restore": {"post": "adapters.write"},
    "adapter-purge": {"post": "adapters.write"},
    "adapter-pin": {"post": "adapters.write"},
    "adapter-delete": {"post": "adapters.write"},
    "upload-delete": {"post": "adapters.write"},
    "source-credentials": {"get": "adapters.write", "post": "adapters.write"},
    "source-credential-delete": {"post": "adapters.write"},
}
