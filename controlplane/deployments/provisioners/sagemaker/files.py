"""Stores the files that a model's container reads, one file per step."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

from controlplane.deployments.containers.images import Family
from controlplane.deployments.provisioners.base import Desired, ProvisioningError, Step
from controlplane.deployments.provisioners.sagemaker.archives import (
    Store,
    adapter_file_put,
    checkpoint_files,
    checkpoint_put,
    preloaded_archive,
)
from controlplane.deployments.provisioners.sagemaker.resources import ObservedResources
from controlplane.deployments.provisioners.sagemaker.specs import Specs


def put_files(
    specs: Specs, desired: Desired, store: Store, seen: ObservedResources, *, heartbeat: Callable[[], None]
) -> Iterator[Step]:
    """Store the missing files of the desired state.

    Raises:
        ProvisioningError: the checkpoint's digests are not taken yet, or S3 refuses.
    """
    if specs.checkpoint_folder:
        yield from _put_checkpoint(specs.checkpoint_folder, desired, store, seen)
    data = specs.data
    if (key := data.archive) and key not in seen.archives:
        with preloaded_archive(desired.adapters, heartbeat=heartbeat) as stream:
            store.put(key, stream)
        yield Step(
            "put_archive", store.url(key), f"{len(desired.adapters)} adapters that come with the model"
        )
    for key, text in data.texts.items():
        if key not in seen.archives:
            store.put(key, io.BytesIO(text.encode()))
            yield Step("put_file", store.url(key), "the container reads it at its start")
    for key, (ref, name) in data.adapter_files.items():
        if key not in seen.archives:
            base = desired.served_name if specs.family is Family.VLLM else ""
            adapter_file_put(store, ref, name, key, base=base)
            yield Step("put_archive", store.url(key), f"{ref.name} comes with the model")


def _put_checkpoint(folder: str, desired: Desired, store: Store, seen: ObservedResources) -> Iterator[Step]:
    if not desired.checkpoint_digest:
        # The folder's name contains the digest: without it the checkpoint would be stored twice.
        raise ProvisioningError(
            f"the digests of base model {desired.base_model}'s files are not taken yet; "
            "if that failed, have them read again on its page",
            transient=True,
            wait=5.0,
            code="no_digest",
        )
    for name in checkpoint_files(desired.checkpoint):
        key = f"{folder}/{name}"
        if key not in seen.checkpoint:
            checkpoint_put(store, desired.checkpoint, name, key)
            yield Step("put_checkpoint", store.url(key), "SageMaker reads the checkpoint from S3")
