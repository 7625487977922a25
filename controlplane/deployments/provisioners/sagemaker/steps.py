"""Steps that both provisioners take, one call each: files, models, configurations and endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from controlplane.deployments.provisioners.base import Desired, ProvisioningError, State, Step
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.files import put_files
from controlplane.deployments.provisioners.sagemaker.resources import ObservedResources
from controlplane.deployments.provisioners.sagemaker.specs import Specs

_ARGUMENTS = {
    "inference_component": "InferenceComponentName",
    "endpoint": "EndpointName",
    "endpoint_config": "EndpointConfigName",
    "model": "ModelName",
}


class Steps:
    """Steps for one deployment. `heartbeat` is called during transfers."""

    def __init__(
        self, account: Account, store: Store, specs: Specs, desired: Desired, *, heartbeat: Callable[[], None]
    ) -> None:
        self._account, self._store, self._specs, self._desired = account, store, specs, desired
        self._names, self._heartbeat = specs.names, heartbeat

    def files(self, seen: ObservedResources) -> Iterator[Step]:
        """Store the files that the model's container loads, one file per step.

        Raises:
            ProvisioningError: the container cannot be created, or a file cannot be stored.
        """
        if problem := self._specs.data.problem:
            raise ProvisioningError(problem)
        yield from put_files(self._specs, self._desired, self._store, seen, heartbeat=self._heartbeat)

    def records(self, seen: ObservedResources) -> Iterator[Step]:
        """Create the model and the endpoint's configuration, unless they exist."""
        if (name := self._specs.model_name) not in seen.models:
            tags = self._names.tags()
            self._account.make("create_model", name, ModelName=name, Tags=tags, **self._specs.model)
            yield Step("create_model", name, "no model with this image, environment and data exists")
        if (name := self._specs.config_name) not in seen.configs:
            tags = self._names.tags(shared=True)
            self._account.make(
                "create_endpoint_config", name, EndpointConfigName=name, Tags=tags, **self._specs.config
            )
            yield Step("create_endpoint_config", name, "no configuration with these instances exists")

    def create_endpoint(self) -> Step:
        name = self._names.endpoint
        self._account.make(
            "create_endpoint",
            name,
            EndpointName=name,
            EndpointConfigName=self._specs.config_name,
            Tags=self._names.tags(shared=True),
        )
        return Step("create_endpoint", name, "it does not exist")

    def tidy(self, seen: ObservedResources, archives: set[str]) -> Iterator[Step]:
        """Delete records and files of an earlier desired state. `archives`: keys of unneeded ones."""
        for name in sorted(seen.configs - {self._specs.config_name, seen.config_in_force}):
            yield self.delete_resource("endpoint_config", name, "another configuration is in force")
        for name in sorted(seen.models - {self._specs.model_name}):
            yield self.delete_resource("model", name, "another model is in force")
        yield from self.remove_files(archives, "none of these adapters is placed")
        folder = f"{self._specs.checkpoint_folder}/"
        stale = {key for key in seen.checkpoint if not key.startswith(folder)}
        yield from self.remove_files(stale, "another content of the checkpoint is in force")

    def remove_endpoint(self, seen: ObservedResources, cause: str) -> Iterator[Step]:
        """Delete the endpoint, unless it is being changed; then its configurations."""
        if seen.endpoint.state is not State.ABSENT:
            if seen.endpoint.state not in (State.LEAVING, State.STARTING, State.CHANGING):
                yield self.delete_resource("endpoint", self._names.endpoint, cause)
            return
        for name in sorted(seen.configs):
            yield self.delete_resource("endpoint_config", name, cause)

    def remove_rest(self, seen: ObservedResources, cause: str) -> Iterator[Step]:
        """Delete all models and files."""
        for name in sorted(seen.models):
            yield self.delete_resource("model", name, cause)
        for folder in ("adapters", "preloaded", "checkpoints"):
            self._store.abort(f"{folder}/{self._desired.deployment}/")
        yield from self.remove_files(set(seen.archives | seen.checkpoint), cause)

    def remove_files(self, keys: set[str], cause: str) -> Iterator[Step]:
        if keys:
            self._store.remove(keys)
            yield Step("delete_objects", self._store.url(""), f"{cause}: {len(keys)} files")

    def delete_resource(self, kind: str, name: str, cause: str) -> Step:
        self._account.take_away(f"delete_{kind}", name, **{_ARGUMENTS[kind]: name})
        return Step(f"delete_{kind}", name, cause)
