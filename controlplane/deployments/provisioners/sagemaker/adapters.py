"""Adapters as inference components over the base component: each with its own archive and status."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.containers.images import Family
from controlplane.deployments.provisioners.base import Desired, PlacedAdapter, ProvisioningError, State, Step
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import (
    ArtifactMissingError,
    Store,
    adapter_archive,
    adapter_key,
)
from controlplane.deployments.provisioners.sagemaker.names import Names
from controlplane.deployments.provisioners.sagemaker.resources import Component, ObservedResources, placed


class Adapters:
    """Adapter components of one deployment; it has none unless its hosting is `components`."""

    def __init__(
        self, account: Account, store: Store, names: Names, desired: Desired, *, heartbeat: Callable[[], None]
    ) -> None:
        self._account, self._store, self._names, self._heartbeat = account, store, names, heartbeat
        refs = desired.adapters if desired.hosting == "components" else ()
        self._wanted: dict[str, AdapterRef] = {names.adapter(ref.name): ref for ref in refs}
        self._keep = {names.adapter(name) for name in desired.keep}
        # vLLM's container has no route that replaces an adapter under its name.
        self._updates = desired.image_family != Family.VLLM
        self._deployment, self._retry = desired.deployment, desired.retry
        self._refused: dict[str, str] = {}

    def keys(self) -> set[str]:
        """Return the keys of the archives that are needed."""
        return {self._key(ref) for ref in self._wanted.values()}

    def _key(self, ref: AdapterRef) -> str:
        return adapter_key(self._deployment, ref.sha256)

    def urls(self) -> dict[str, str]:
        """Return the URL of the archive that each component must hold, by component name."""
        return {name: self._store.url(self._key(ref)) for name, ref in self._wanted.items()}

    def placed(self, seen: ObservedResources) -> dict[str, PlacedAdapter]:
        """Return adapters by engine name; components without a known engine name use their own."""
        found = {}
        for name, ref in self._wanted.items():
            item = seen.adapters.get(name, Component(name, State.ABSENT))
            if (reason := self._refused.get(name)) is not None:
                item = Component(name, State.FAILED, reason)
            found[ref.name] = placed(item)
        others = set(seen.adapters) - set(self._wanted) - self._keep
        return found | {name: placed(seen.adapters[name]) for name in others}

    def apply(self, seen: ObservedResources) -> Generator[Step, None, ProvisioningError | None]:
        """Create new components before deleting old ones, so that a replacement is ready first.

        Returns:
            the error that stops further creations for now; deletions may free a quota.
        """
        stored, held = set(seen.archives), None
        for name, ref in self._wanted.items():
            item = seen.adapters.get(name)
            if item is None:
                if held is not None:
                    continue
                if (key := self._key(ref)) not in stored:
                    stored.add(key)
                    try:
                        with adapter_archive(ref, heartbeat=self._heartbeat) as stream:
                            self._store.put(key, stream)
                    except ArtifactMissingError as error:
                        self._refused[name] = str(error)
                        yield Step(
                            "put_archive", self._store.url(key), f"{ref.name} does not exist", str(error)
                        )
                        continue
                    yield Step("put_archive", self._store.url(key), f"{ref.name} is loaded from there")
                try:
                    created = self._create(name, ref)
                except ProvisioningError as error:
                    held = error
                    continue
                yield created
            elif item.state is State.FAILED and self._retry:
                yield self._delete(seen.adapters[name], f"{ref.name} failed and is recreated")
            elif name in seen.wrong_archives and not self._updates:
                yield self._delete(seen.adapters[name], f"{ref.name} held another archive and is recreated")
            elif name in seen.wrong_archives:
                url = self._store.url(self._key(ref))
                self._account.call(
                    "update_inference_component",
                    name,
                    InferenceComponentName=name,
                    Specification={"Container": {"ArtifactUrl": url}},
                )
                yield Step("update_inference_component", name, f"{ref.name}: it held another archive")
        for name in sorted(set(seen.adapters) - set(self._wanted) - self._keep):
            if seen.adapters[name].state is not State.LEAVING:
                yield self._delete(seen.adapters[name], "no route leads to it")
        return held

    def remove(self, seen: ObservedResources, cause: str) -> Iterator[Step]:
        """Delete all adapter components."""
        for name in sorted(seen.adapters):
            if seen.adapters[name].state is not State.LEAVING:
                yield self._delete(seen.adapters[name], cause)

    def _create(self, name: str, ref: AdapterRef) -> Step:
        """Create a component; a permanent refusal is recorded for its adapter, a transient one is raised."""
        specification = {
            "BaseInferenceComponentName": self._names.base,
            "Container": {"ArtifactUrl": self._store.url(self._key(ref))},
        }
        try:
            self._account.make(
                "create_inference_component",
                name,
                InferenceComponentName=name,
                EndpointName=self._names.endpoint,
                Specification=specification,
                Tags=self._names.adapter_tags(ref.name),
            )
        except ProvisioningError as error:
            if error.transient:
                raise
            self._refused[name] = str(error)
        return Step(
            "create_inference_component", name, f"{ref.name} does not exist", self._refused.get(name, "")
        )

    def _delete(self, item: Component, cause: str) -> Step:
        name = item.name
        if not self._names.is_ours(self._account.tags(item.description["InferenceComponentArn"])):
            raise self._names.refusal(name)
        self._account.take_away("delete_inference_component", name, InferenceComponentName=name)
        return Step("delete_inference_component", name, cause)
