"""Steps that both provisioners take, one call each: files, models, configurations and endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from controlplane.deployments.provisioners.base import Desired, ProvisioningError, State, Step
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import (
    Store,
    checkpoint_files,
    checkpoint_put,
    preloaded_archive,
)
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
        """Store the files that the model's container loads, one file per step."""
        if folder := self._specs.checkpoint_folder:
            if not self._desired.checkpoint_digest:
                # The folder's name contains the digest: without it the checkpoint would be stored twice.
                raise ProvisioningError(
                    f"the digests of base model {self._desired.base_model}'s files are not taken yet; "
                    "if that failed, have them read again on its page",
                    transient=True,
                    wait=5.0,
                    code="no_digest",
                )
            for name in checkpoint_files(self._desired.checkpoint):
                key = f"{folder}/{name}"
                if key not in seen.checkpoint:
                    checkpoint_put(self._store, self._desired.checkpoint, name, key)
                    yield Step(
                        "put_checkpoint", self._store.url(key), "SageMaker reads the checkpoint from S3"
                    )
        if (key := self._specs.preloaded) and key not in seen.archives:
            with preloaded_archive(self._desired.adapters, heartbeat=self._heartbeat) as stream:
                self._store.put(key, stream)
            count = len(self._desired.adapters)
            yield Step("put_archive", self._store.url(key), f"{count} adapters that come with the model")

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
