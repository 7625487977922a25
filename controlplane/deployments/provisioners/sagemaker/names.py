"""What a deployment's resources on SageMaker are called: all of it follows from the deployment's own name.

A part that cannot be changed once it is there (a model, an endpoint's configuration, an archive) carries a
digest of what is in it: another content is another name, beside the one that is in use.
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
"""The tag without which nothing is changed or removed."""
OWNER: Final = "graftwork:owner"
"""Its value is the target's: that of another installation in the same account is another."""
_BY: Final = "graftwork"


def content_digest(content: Mapping[str, Any]) -> str:
    """Eight digits of what a resource is made from."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


class Names:
    """Of one deployment in a target of this `owner`."""

    def __init__(self, desired: Desired, owner: str) -> None:
        self._desired, self._owner = desired, owner
        self.endpoint = desired.endpoint or f"gw-{desired.deployment}"
        self.base = f"gw-{desired.deployment}"

    @property
    def alarms(self) -> str:
        """What the names of our alarms begin with: alarms of the account's other targets begin otherwise."""
        return f"{self.base}-{self._owner}-rollout-"

    def config(self, content: Mapping[str, Any]) -> str:
        return f"{self.endpoint}-{content_digest(content)}"

    def model(self, content: Mapping[str, Any]) -> str:
        return f"{self.base}-{content_digest(content)}"

    def adapter(self, engine_name: str) -> str:
        """As gateways derive it."""
        return adapter_component(self.base, engine_name)

    def is_config(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self.endpoint)}-[0-9a-f]{{8}}", name) is not None

    def is_model(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self.base)}-[0-9a-f]{{8}}", name) is not None

    def is_adapter(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self.base)}-[0-9a-f]{{20}}", name) is not None

    def tags(self, *, shared: bool = False) -> list[dict[str, str]]:
        """Of the base's model and component; `shared`: of the endpoint, which may be several deployments'."""
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
        """Whose adapter it is, for bills and for whoever looks."""
        name = EngineName.parse(engine_name)
        values = {
            "graftwork:tenant": name.tenant,
            "graftwork:adapter": name.adapter,
            "graftwork:version": str(name.version),
        }
        return self.tags() + _listed(values)

    def is_ours(self, tags: Mapping[str, str]) -> bool:
        """Whether a resource of these tags was made for this target, by this installation."""
        return tags.get(MANAGED) == _BY and tags.get(OWNER, "") == self._owner

    def refusal(self, name: str) -> ProvisioningError:
        """For a resource that has a name of ours and is not."""
        return ProvisioningError(
            f"{name} exists in this account and was not made by this installation for this target: "
            "remove it, or name the deployment otherwise",
            code="not_ours",
        )


def _listed(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in values.items()]
