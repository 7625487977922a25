"""Request bodies that make SageMaker create a desired state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from controlplane.deployments.containers.images import DEFAULT_IMAGE, Family, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import Desired
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.model_data import ModelData, model_data
from controlplane.deployments.provisioners.sagemaker.names import VARIANT, Names
from controlplane.deployments.scaling.policy import Routing, ScalingPolicy

_STARTUP_SECONDS: Final = 1200
Hosting = Deployment.Hosting


@dataclass(frozen=True, slots=True)
class Specs:
    """All request bodies of one deployment; equal desired states give equal bodies.

    Attributes:
        checkpoint_folder: key of the folder for a copy of the checkpoint; "" if none is needed.
        data: the model's container and its files.
        requirements: ComputeResourceRequirements of a copy by instance type, in the order of the pools.
        serves_adapters: False if the container would ignore a request's adapter and answer by the base model.
    """

    names: Names
    model: Mapping[str, Any]
    config: Mapping[str, Any]
    requirements: Mapping[str, Mapping[str, Any]]
    image: Image
    checkpoint_folder: str
    data: ModelData
    serves_adapters: bool

    @property
    def family(self) -> Family:
        return self.image.family

    @property
    def model_name(self) -> str:
        return self.names.model(self.model)

    @property
    def config_name(self) -> str:
        variants = [_without_count(variant) for variant in self.config["ProductionVariants"]]
        return self.names.config({**self.config, "ProductionVariants": variants})

    @property
    def base(self) -> dict[str, Any]:
        """The base component's Specification, or Specifications by instance type."""
        found = [self._specification(kind) for kind in self.requirements]
        if len(found) == 1:
            return {"Specification": found[0]}
        typed = zip(self.requirements, found, strict=True)
        return {"Specifications": [{"InstanceType": kind, **item} for kind, item in typed]}

    def _specification(self, kind: str) -> dict[str, Any]:
        return {
            "ModelName": self.model_name,
            "StartupParameters": {
                "ModelDataDownloadTimeoutInSeconds": _STARTUP_SECONDS,
                "ContainerStartupHealthCheckTimeoutInSeconds": _STARTUP_SECONDS,
            },
            "ComputeResourceRequirements": dict(self.requirements[kind]),
        }

    @classmethod
    def from_target(cls, target: Target, desired: Desired, store: Store) -> Specs:
        image = Image.from_name(desired.image or DEFAULT_IMAGE, family=desired.image_family)
        options = LmiOptions.from_values(desired.options, image, hosting=desired.hosting)
        folder = ""
        if desired.checkpoint.startswith("/") or desired.checkpoint_needs_token:
            folder = f"checkpoints/{desired.deployment}/{desired.checkpoint_digest[:12] or 'unread'}"
        data = model_data(
            desired,
            image,
            options,
            weights=store.url(f"{folder}/") if folder else desired.checkpoint,
            region=target.region,
            store=store,
            adapters=desired.adapters if desired.hosting == Hosting.PRELOADED else (),
        )
        names = Names(desired, target.owner)
        model = {"PrimaryContainer": data.container, "ExecutionRoleArn": target.role_arn}
        if desired.hosting == Hosting.ENDPOINT:
            variant = _model_variant(desired, image, names.model(model))
            config: dict[str, Any] = {"ProductionVariants": [variant]}
        else:
            config = {"ProductionVariants": [_variant(desired, image)], "ExecutionRoleArn": target.role_arn}
        config |= metrics_config(desired.endpoint_scaling)
        return cls(
            names=names,
            model=model,
            config=config,
            requirements={kind: _requirements(desired, kind) for kind in _types(desired)},
            image=image,
            checkpoint_folder=folder,
            data=data,
            serves_adapters=options.enable_lora or image.family is Family.WORKER,
        )


def _model_variant(desired: Desired, image: Image, model: str) -> dict[str, Any]:
    """Return the variant of an endpoint without components: a model, with an instance per copy."""
    policy = desired.endpoint_scaling
    routing = policy.routing if policy else Routing.LEAST_OUTSTANDING
    return {
        "VariantName": VARIANT,
        "ModelName": model,
        **_instances(desired),
        "InitialInstanceCount": desired.min_copies,
        "InitialVariantWeight": 1.0,
        "ModelDataDownloadTimeoutInSeconds": _STARTUP_SECONDS,
        "ContainerStartupHealthCheckTimeoutInSeconds": _STARTUP_SECONDS,
        "RoutingConfig": {"RoutingStrategy": routing.value},
        **_ami(desired, image),
    }


def _without_count(variant: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's variant without its first number of instances, which scaling changes.

    A variant for components keeps it: there it is a bound of the managed instances.
    """
    return {
        name: value
        for name, value in variant.items()
        if name != "InitialInstanceCount" or "ModelName" not in variant
    }


def _variant(desired: Desired, image: Image) -> dict[str, Any]:
    """Return the variant of an endpoint for components: without a model, with managed instances."""
    policy = desired.endpoint_scaling
    routing = policy.routing if policy else Routing.LEAST_OUTSTANDING
    return {
        "VariantName": VARIANT,
        **_instances(desired),
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
        **_ami(desired, image),
    }


def _types(desired: Desired) -> tuple[str, ...]:
    return desired.instance_type, *desired.fallback_instance_types


def _instances(desired: Desired) -> dict[str, Any]:
    """Return the variant's instance type, or its pools; priority 1 is the highest."""
    if not desired.fallback_instance_types:
        return {"InstanceType": desired.instance_type}
    numbered = enumerate(_types(desired), start=1)
    return {"InstancePools": [{"InstanceType": kind, "Priority": number} for number, kind in numbered]}


def _ami(desired: Desired, image: Image) -> dict[str, Any]:
    """Return the instances' host image, if the container's CUDA needs another than SageMaker's default."""
    has_gpus = any(kind.startswith(("ml.g", "ml.p")) for kind in _types(desired))
    return {"InferenceAmiVersion": image.ami_version} if image.ami_version and has_gpus else {}


def _release(policy: ScalingPolicy | None) -> dict[str, Any]:
    """Return how instances are released, if the scaling policy sets it."""
    if policy is None or policy.release is None:
        return {}
    cooldown = policy.release_cooldown_minutes
    return {"ScaleInPolicy": {"Strategy": policy.release.value, "CooldownInMinutes": cooldown}}


def metrics_config(policy: ScalingPolicy | None) -> dict[str, Any]:
    """Return the endpoint's metrics as far as the policy sets them; else AWS's defaults apply."""
    if policy is None or not (policy.metrics_seconds or policy.basic_metrics):
        return {}
    found: dict[str, Any] = {"EnableDetailedObservability": not policy.basic_metrics}
    if seconds := policy.metrics_seconds:
        found |= {"EnableEnhancedMetrics": True, "MetricPublishFrequencyInSeconds": seconds}
    return {"MetricsConfig": found}


def _requirements(desired: Desired, kind: str) -> dict[str, Any]:
    """Return ComputeResourceRequirements of a copy on an instance type."""
    compute = {**desired.compute, **desired.compute.get("by_type", {}).get(kind, {})}
    found: dict[str, Any] = {"MinMemoryRequiredInMb": int(compute["memory_mb"])}
    if accelerators := compute.get("accelerators"):
        found["NumberOfAcceleratorDevicesRequired"] = float(accelerators)
    if cpus := compute.get("cpus"):
        found["NumberOfCpuCoresRequired"] = float(cpus)
    if most := compute.get("max_memory_mb"):
        found["MaxMemoryRequiredInMb"] = int(most)
    return found
