"""Adapters as inference components over the base's: each with its own archive, status and metrics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.provisioners.base import (
    Desired,
    PlacedAdapter,
    ProvisioningError,
    State,
    Step,
)
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.archives import (
    ArtifactMissingError,
    Store,
    adapter_archive,
    adapter_key,
)
from controlplane.deployments.provisioners.sagemaker.names import Names
from controlplane.deployments.provisioners.sagemaker.seen import Component, Seen, placed


class Adapters:
    """Of one deployment whose hosting is `components`; of others it has none."""

    def __init__(
        self, account: Account, store: Store, names: Names, desired: Desired, *, beat: Callable[[], None]
    ) -> None:
        self._account, self._store, self._names, self._beat = account, store, names, beat
        refs = desired.adapters if desired.hosting == "components" else ()
        self._wanted: dict[str, AdapterRef] = {names.adapter(ref.name): ref for ref in refs}
        self._keep = {names.adapter(name) for name in desired.keep}
        self._deployment, self._retry = desired.deployment, desired.retry
        self._refused: dict[str, str] = {}

    def keys(self) -> set[str]:
        """Of the archives that are needed."""
        return {self._key(ref) for ref in self._wanted.values()}

    def _key(self, ref: AdapterRef) -> str:
        return adapter_key(self._deployment, ref.sha256)

    def urls(self) -> dict[str, str]:
        """By component, the archive that it is to hold."""
        return {name: self._store.url(self._key(ref)) for name, ref in self._wanted.items()}

    def placed(self, seen: Seen) -> dict[str, PlacedAdapter]:
        """By engine name; components whose engine name is not known any more go by their own."""
        found = {}
        for name, ref in self._wanted.items():
            item = seen.adapters.get(name, Component(name, State.ABSENT))
            if (reason := self._refused.get(name)) is not None:
                item = Component(name, State.FAILED, reason)
            found[ref.name] = placed(item)
        others = set(seen.adapters) - set(self._wanted) - self._keep
        return found | {name: placed(seen.adapters[name]) for name in others}

    def apply(self, seen: Seen) -> Generator[Step, None, ProvisioningError | None]:
        """New ones first, so that a version that replaces another is there before that one goes.

        Returns what holds up the creation of others for now: a quota is given back by those that go.
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
                        with adapter_archive(ref, beat=self._beat) as stream:
                            self._store.put(key, stream)
                    except ArtifactMissingError as error:
                        self._refused[name] = str(error)
                        yield Step(
                            "put_archive", self._store.url(key), f"{ref.name} is not there", str(error)
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
                yield self._delete(seen.adapters[name], f"{ref.name} failed, and is made anew")
            elif name in seen.wrong_archives:
                url = self._store.url(self._key(ref))
                self._account.call(
                    "update_inference_component", name, InferenceComponentName=name,
                    Specification={"Container": {"ArtifactUrl": url}},
                )  # fmt: skip
                yield Step("update_inference_component", name, f"{ref.name}: it held another archive")
        for name in sorted(set(seen.adapters) - set(self._wanted) - self._keep):
            if seen.adapters[name].state is not State.LEAVING:
                yield self._delete(seen.adapters[name], "no route leads to it")
        return held

    def remove(self, seen: Seen, cause: str) -> Iterator[Step]:
        """All of them."""
        for name in sorted(seen.adapters):
            if seen.adapters[name].state is not State.LEAVING:
                yield self._delete(seen.adapters[name], cause)

    def _create(self, name: str, ref: AdapterRef) -> Step:
        """A refusal for good is this adapter's own affair; a passing one is raised, and holds up others."""
        specification = {
            "BaseInferenceComponentName": self._names.base,
            "Container": {"ArtifactUrl": self._store.url(self._key(ref))},
        }
        try:
            self._account.make(
                "create_inference_component", name, InferenceComponentName=name,
                EndpointName=self._names.endpoint,
                Specification=specification, Tags=self._names.adapter_tags(ref.name),
            )  # fmt: skip
        except ProvisioningError as error:
            if error.transient:
                raise
            self._refused[name] = str(error)
        return Step(
            "create_inference_component", name, f"{ref.name} is not there", self._refused.get(name, "")
        )

    def _delete(self, item: Component, cause: str) -> Step:
        name = item.name
        if not self._names.is_ours(self._account.tags(item.told["InferenceComponentArn"])):
            raise self._names.refusal(name)
        self._account.take_away("delete_inference_component", name, InferenceComponentName=name)
        return Step("delete_inference_component", name, cause)
