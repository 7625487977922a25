"""Names of a deployment's SageMaker resources, all derived from the deployment's name.

Immutable resources (a model, an endpoint's configuration, an archive) carry a digest of their content.
Changed content gets a new name next to the one in use.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from contracts.adapters.reference import EngineName
from contracts.base_routes import adapter_component
from controlplane.deployments.provisioners.base import Desired, ProvisioningError

VARIANT: Final = "main"
MANAGED: Final = "graftwork:managed-by"
"""Tag of our resources; without it nothing is changed or removed."""
OWNER: Final = "graftwork:owner"
"""Tag with the target's owner; other installations in the same account have other values."""
_BY: Final = "graftwork"


def content_digest(content: Mapping[str, Any]) -> str:
    """Return eight hex digits of a resource's content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


class Names:
    """Names for one deployment in a target of this `owner`."""

    def __init__(self, desired: Desired, owner: str) -> None:
        self._desired, self._owner = desired, owner
        self.endpoint = desired.endpoint or f"gw-{desired.deployment}"
        self.base = f"gw-{desired.deployment}"

    @property
    def alarms(self) -> str:
        """Prefix of our alarms' names; no other alarm in the account has it."""
        return f"{self.base}-{self._owner}-rollout-"

    def config(self, content: Mapping[str, Any]) -> str:
        return f"{self.endpoint}-{content_digest(content)}"

    def model(self, content: Mapping[str, Any]) -> str:
        return f"{self.base}-{content_digest(content)}"

    def adapter(self, engine_name: str) -> str:
        """Return the name of an adapter's component; gateways derive the same name."""
        return adapter_component(self.base, engine_name)

    def is_config(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self.endpoint)}-[0-9a-f]{{8}}", name) is not None

    def is_model(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self.base)}-[0-9a-f]{{8}}", name) is not None

    def is_adapter(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self.base)}-[0-9a-f]{{20}}", name) is not None

    def tags(self, *, shared: bool = False) -> list[dict[str, str]]:
        """Return the tags of the base's model and component or, if `shared`, those of the endpoint."""
        values = {MANAGED: _BY} | ({OWNER: self._owner} if self._owner else {})
        if shared:
            values["graftwork:endpoint"] = self.endpoint
        else:
            values |= {
                "graftwork:deployment": self._desired.deployment,
                "graftwork:base-model": self._desired.base_model,
            }
        return _listed(values)

    def adapter_tags(self, engine_name: str) -> list[dict[str, str]]:
        """Return tags that name the adapter's tenant and version, for cost reports and operators."""
        name = EngineName.parse(engine_name)
        values = {
            "graftwork:tenant": name.tenant,
            "graftwork:adapter": name.adapter,
            "graftwork:version": str(name.version),
        }
        return self.tags() + _listed(values)

    def is_ours(self, tags: Mapping[str, str]) -> bool:
        """Return True if this installation created the tagged resource for this target."""
        return tags.get(MANAGED) == _BY and tags.get(OWNER, "") == self._owner

    def refusal(self, name: str) -> ProvisioningError:
        """Return the error for a resource that has one of our names but is not ours."""
        return ProvisioningError(
            f"{name} exists in this account and was not made by this installation for this target: "
            "remove it, or name the deployment otherwise",
            code="not_ours",
        )


def _listed(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in values.items()]
