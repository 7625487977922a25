"""A model's container as CreateModel describes it, and the files in the target's store that it reads.

| family | ModelDataSource or ModelDataUrl | additional data sources |
|---|---|---|
| LMI | archive of preloaded adapters, or in hosting endpoint the weights, else read from S3 | draft model |
| TGI | weights | adapters |
| vLLM | weights | adapters, draft model |
| Triton | model repository | weights, adapters |
| PyTorch | handler | weights, adapters |
| bundled worker | weights | draft model |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.containers.channels import (
    ADAPTER_CHANNEL,
    DRAFT_CHANNEL,
    MODEL_FOLDER,
    WEIGHTS_CHANNEL,
    adapter_folder,
    channel_folder,
)
from controlplane.deployments.containers.environment import container_environment
from controlplane.deployments.containers.images import Family, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.containers.pytorch import pytorch_files
from controlplane.deployments.containers.triton import triton_repository
from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners.base import Desired
from controlplane.deployments.provisioners.sagemaker.archives import (
    Store,
    numbered,
    preloaded_files,
    preloaded_folder,
    preloaded_key,
)
from controlplane.errors import InvalidInputError

_HUB: Final = "hf://"
_WEIGHTS: Final = {
    Family.TGI: MODEL_FOLDER,
    Family.VLLM: MODEL_FOLDER,
    Family.TRITON: channel_folder(WEIGHTS_CHANNEL),
    Family.PYTORCH: channel_folder(WEIGHTS_CHANNEL),
}
"""Folder of the weights in containers that do not read S3."""
_WRITTEN: Final = {Family.TRITON: triton_repository, Family.PYTORCH: pytorch_files}
"""Families whose model data is files that the deployment writes."""


@dataclass(frozen=True, slots=True)
class ModelData:
    """A container and its files.

    Attributes:
        container: ContainerDefinition of CreateModel.
        archive: key of the archive with all adapters; "" without one.
        adapter_files: key -> (adapter, file name), of adapters that are stored as single files.
        texts: key -> text, of files that are written for the container.
        problem: why the container cannot be created, and what to do; "" if it can.
    """

    container: Mapping[str, Any]
    archive: str = ""
    adapter_files: Mapping[str, tuple[AdapterRef, str]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def keys(self) -> frozenset[str]:
        """Keys of all files."""
        return frozenset(filter(None, (self.archive, *self.adapter_files, *self.texts)))


def model_data(
    desired: Desired,
    image: Image,
    options: LmiOptions,
    *,
    weights: str,
    region: str,
    store: Store,
    adapters: Sequence[AdapterRef],
) -> ModelData:
    """Return the container of a desired state.

    Args:
        weights: `s3://...` or `hf://...`.
        adapters: adapters that the container has from its start.
    """
    try:
        return _model_data(desired, image, options, weights, region, store, adapters)
    except InvalidInputError as error:
        # Observing and removing what exists must go on.
        return ModelData({"Image": image.uri(region)}, problem=str(error))


def _model_data(
    desired: Desired,
    image: Image,
    options: LmiOptions,
    weights: str,
    region: str,
    store: Store,
    adapters: Sequence[AdapterRef],
) -> ModelData:
    in_s3, is_variant = weights.startswith("s3://"), desired.hosting == Deployment.Hosting.ENDPOINT
    model, _, revision = weights.removeprefix(_HUB).partition("@") if not in_s3 else (weights, "", "")
    if in_s3:
        model = _WEIGHTS.get(image.family, MODEL_FOLDER if is_variant else model)
    source: dict[str, Any] = {
        "model": model,
        "revision": revision,
        "accelerators": int(desired.compute.get("accelerators", 0)),
        "adapters": {name: adapter_folder(number) for name, number in numbered(adapters).items()},
    }
    env = container_environment(image, options, served_name=desired.served_name, **source)
    container: dict[str, Any] = {"Image": image.uri(region), "Environment": {**env, **desired.environment}}
    folder = preloaded_folder(desired.deployment, adapters)
    channels: dict[str, str] = {}
    archive, files, texts = "", dict[str, tuple[AdapterRef, str]](), dict[str, str]()
    if image.family in _WRITTEN:
        repository = _WRITTEN[image.family](options, **source)
        folder = f"{folder}-{_digest(repository)}"
        texts = {f"{folder}/repository/{path}": text for path, text in repository.items()}
        container["ModelDataSource"] = {"S3DataSource": _prefix(store.url(f"{folder}/repository"))}
        if in_s3:
            channels[WEIGHTS_CHANNEL] = weights
    elif in_s3 and (image.family is not Family.LMI or is_variant):
        container["ModelDataSource"] = {"S3DataSource": _prefix(weights) | _license(options)}
    if adapters and image.family in _WEIGHTS:
        by_name = image.family is Family.VLLM
        files = preloaded_files(f"{folder}/{ADAPTER_CHANNEL}", adapters, by_name=by_name)
        channels[ADAPTER_CHANNEL] = store.url(f"{folder}/{ADAPTER_CHANNEL}")
    elif adapters:
        archive = preloaded_key(desired.deployment, adapters)
        container["ModelDataUrl"] = store.url(archive)
    if options.draft_model.startswith("s3://"):
        channels[DRAFT_CHANNEL] = options.draft_model
    if channels:
        container["AdditionalModelDataSources"] = [
            {"ChannelName": name, "S3DataSource": _prefix(url) | _license(options)}
            for name, url in channels.items()
        ]
    return ModelData(container, archive, files, texts)


def _digest(texts: Mapping[str, str]) -> str:
    lines = "".join(
        f"{hashlib.sha256(text.encode()).hexdigest()}  {path}\n" for path, text in sorted(texts.items())
    )
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def _prefix(url: str) -> dict[str, str]:
    return {"S3Uri": url.rstrip("/") + "/", "S3DataType": "S3Prefix", "CompressionType": "None"}


def _license(options: LmiOptions) -> dict[str, Any]:
    return {"ModelAccessConfig": {"AcceptEula": True}} if options.accept_eula else {}
