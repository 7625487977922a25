"""Request bodies that make SageMaker create a desired state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.containers.environment import container_environment
from controlplane.deployments.containers.images import DEFAULT_IMAGE, Family, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.containers.speculation import DRAFT_CHANNEL
from controlplane.deployments.containers.tgi import TGI_ADAPTER_CHANNEL, TGI_MODEL_FOLDER, tgi_adapter_folder
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import Desired
from controlplane.deployments.provisioners.sagemaker.archives import (
    Store,
    numbered,
    preloaded_files,
    preloaded_folder,
    preloaded_key,
)
from controlplane.deployments.provisioners.sagemaker.names import VARIANT, Names
from controlplane.deployments.scaling.policy import Routing, ScalingPolicy
from controlplane.errors import InvalidInputError

_STARTUP_SECONDS: Final = 1200
_HUB: Final = "hf://"
Hosting = Deployment.Hosting


@dataclass(frozen=True, slots=True)
class Specs:
    """All request bodies of one deployment; equal desired states give equal bodies.

    Attributes:
        checkpoint_folder: key of the folder for a copy of the checkpoint; "" if none is needed.
        preloaded: key of the archive with all adapters; "" in other hosting modes.
        adapter_files: key -> (adapter, file name), for a family that reads the adapters' files unpacked.
        problem: why the desired state cannot be created, and what to do; "" if it can.
    """

    names: Names
    model: Mapping[str, Any]
    config: Mapping[str, Any]
    requirements: Mapping[str, Any]
    family: Family
    checkpoint_folder: str
    preloaded: str
    adapter_files: Mapping[str, tuple[AdapterRef, str]]
    problem: str

    @property
    def model_name(self) -> str:
        return self.names.model(self.model)

    @property
    def config_name(self) -> str:
        return self.names.config(self.config)

    @property
    def base(self) -> dict[str, Any]:
        """The base component's Specification."""
        return {
            "ModelName": self.model_name,
            "StartupParameters": {
                "ModelDataDownloadTimeoutInSeconds": _STARTUP_SECONDS,
                "ContainerStartupHealthCheckTimeoutInSeconds": _STARTUP_SECONDS,
            },
            "ComputeResourceRequirements": dict(self.requirements),
        }

    @classmethod
    def from_target(cls, target: Target, desired: Desired, store: Store) -> Specs:
        image = Image.from_name(desired.image or DEFAULT_IMAGE, family=desired.image_family)
        options = LmiOptions.from_values(desired.options, image, fused=desired.hosting == Hosting.FUSED)
        folder = ""
        if desired.checkpoint.startswith("/") or desired.checkpoint_needs_token:
            folder = f"checkpoints/{desired.deployment}/{desired.checkpoint_digest[:12] or 'unread'}"
        weights = store.url(f"{folder}/") if folder else desired.checkpoint
        adapters = desired.adapters if desired.hosting == Hosting.PRELOADED else ()
        archive, files, problem = "", dict[str, tuple[AdapterRef, str]](), ""
        if adapters and image.family is Family.TGI:
            files = preloaded_files(desired.deployment, adapters)
        elif adapters:
            archive = preloaded_key(desired.deployment, adapters)
        try:
            container = _container(desired, image, options, weights, target.region, adapters)
        except InvalidInputError as error:
            problem = str(error)
            container = _container(desired, image, options, weights, target.region, ())
        if archive:
            container["ModelDataUrl"] = store.url(archive)
        if files:
            folder_url = store.url(preloaded_folder(desired.deployment, adapters))
            container["AdditionalModelDataSources"] = [_channel(TGI_ADAPTER_CHANNEL, folder_url)]
        return cls(
            names=Names(desired, target.owner),
            model={"PrimaryContainer": container, "ExecutionRoleArn": target.role_arn},
            config={"ProductionVariants": [_variant(desired)], "ExecutionRoleArn": target.role_arn},
            requirements=_requirements(desired),
            family=image.family,
            checkpoint_folder=folder,
            preloaded=archive,
            adapter_files=files,
            problem=problem,
        )


def _container(
    desired: Desired,
    image: Image,
    options: LmiOptions,
    weights: str,
    region: str,
    adapters: Sequence[AdapterRef],
) -> dict[str, Any]:
    accelerators = int(desired.compute.get("accelerators", 0))
    model, revision = weights, ""
    if weights.startswith(_HUB):
        model, _, revision = weights.removeprefix(_HUB).partition("@")
    elif image.family is Family.TGI:
        # TGI reads no S3: SageMaker stores the files in the container.
        model = TGI_MODEL_FOLDER
    env = container_environment(
        image,
        options,
        model=model,
        revision=revision,
        served_name=desired.served_name,
        accelerators=accelerators,
        adapters={name: tgi_adapter_folder(number) for name, number in numbered(adapters).items()},
    )
    container: dict[str, Any] = {"Image": image.uri(region), "Environment": {**env, **desired.environment}}
    if image.family is not Family.LMI and weights.startswith("s3://"):
        container["ModelDataSource"] = {"S3DataSource": _prefix(weights)}
    if options.draft_model.startswith("s3://"):
        container["AdditionalModelDataSources"] = [_channel(DRAFT_CHANNEL, options.draft_model)]
    return container


def _channel(name: str, url: str) -> dict[str, Any]:
    """Return an additional data source, whose files SageMaker stores in the container."""
    return {"ChannelName": name, "S3DataSource": _prefix(url)}


def _prefix(url: str) -> dict[str, str]:
    return {"S3Uri": url.rstrip("/") + "/", "S3DataType": "S3Prefix", "CompressionType": "None"}


def _variant(desired: Desired) -> dict[str, Any]:
    """Return the variant of an endpoint for components: without a model, with managed instances."""
    policy = desired.endpoint_scaling
    routing = policy.routing if policy else Routing.LEAST_OUTSTANDING
    return {
        "VariantName": VARIANT,
        "InstanceType": desired.instance_type,
        "InitialInstanceCount": max(1, desired.min_instances),
        "ModelDataDownloadTimeoutInSeconds": _STARTUP_SECONDS,
        "ContainerStartupHealthCheckTimeoutInSeconds": _STARTUP_SECONDS,
        "ManagedInstanceScaling": {
            "Status": "ENABLED",
            "MinInstanceCount": desired.min_instances,
            "MaxInstanceCount": desired.max_instances,
            **_release(policy),
        },
        "RoutingConfig": {"RoutingStrategy": routing.value},
    }


def _release(policy: ScalingPolicy | None) -> dict[str, Any]:
    """Return how instances are released, if the scaling policy sets it."""
    if policy is None or policy.release is None:
        return {}
    cooldown = policy.release_cooldown_minutes
    return {"ScaleInPolicy": {"Strategy": policy.release.value, "CooldownInMinutes": cooldown}}


def _requirements(desired: Desired) -> dict[str, Any]:
    compute = desired.compute
    found: dict[str, Any] = {"MinMemoryRequiredInMb": int(compute["memory_mb"])}
    if accelerators := compute.get("accelerators"):
        found["NumberOfAcceleratorDevicesRequired"] = float(accelerators)
    if cpus := compute.get("cpus"):
        found["NumberOfCpuCoresRequired"] = float(cpus)
    if most := compute.get("max_memory_mb"):
        found["MaxMemoryRequiredInMb"] = int(most)
    return found
