"""InferenceComponentSpecification: validation, updates and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.resources.records import ComponentRecord
from sagemaker_local.resources.store import Region

MODEL: Final = "Model"
"""Key of a base's specification with its model: CreateModel's input, since the model may be deleted."""
_ADAPTER_MEMBERS: Final = frozenset({"BaseInferenceComponentName", "Container"})


def choose_specification(request: Mapping[str, Any], instance_type: str) -> dict[str, Any]:
    """Return Specification, or the member of Specifications for the variant's instance type.

    Raises:
        ValidationException: both or neither are given, or none is for that type.
    """
    one, many = request.get("Specification"), request.get("Specifications")
    if (one is None) == (many is None):
        raise ValidationException("Specify either Specification or Specifications, and not both.")
    for spec in [one] if many is None else many:
        if spec is not None and spec.get("InstanceType", instance_type) == instance_type:
            return dict(spec)
    raise ValidationException(f"No specification is for {instance_type}, which the variant has.")


def demand_base(spec: dict[str, Any], region: Region) -> dict[str, Any]:
    """Return the specification with its model's input added.

    Raises:
        ValidationException: it lacks a container or resources, or the model does not exist.
    """
    container = spec.get("Container", {})
    if ("ModelName" in spec) == ("Image" in container):
        raise ValidationException(
            "Specify either ModelName or Container.Image in the specification, and not both."
        )
    if "ComputeResourceRequirements" not in spec:
        raise ValidationException(
            "ComputeResourceRequirements is required for an inference component without a base."
        )
    needs = spec["ComputeResourceRequirements"]
    if needs.get("MaxMemoryRequiredInMb", needs["MinMemoryRequiredInMb"]) < needs["MinMemoryRequiredInMb"]:
        raise ValidationException("MaxMemoryRequiredInMb must not be less than MinMemoryRequiredInMb.")
    if (model := spec.get("ModelName")) is None or MODEL in spec:
        return spec
    return {**spec, MODEL: region.model(model).spec}


def demand_adapter(request: Mapping[str, Any]) -> dict[str, Any]:
    """Raise ValidationException unless it has exactly a base's name and an artifact."""
    spec = dict(request["Specification"])
    if others := sorted(set(spec) - _ADAPTER_MEMBERS):
        raise ValidationException(f"An adapter inference component takes no {', '.join(others)}.")
    if "RuntimeConfig" in request:
        raise ValidationException("An adapter inference component takes no RuntimeConfig.")
    container = spec.get("Container", {})
    if set(container) != {"ArtifactUrl"}:
        raise ValidationException(
            "An adapter inference component needs Container.ArtifactUrl, and only that."
        )
    return spec


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Apply an update to a specification; omitted members stay; a model and an image exclude each other."""
    kept = dict(old)
    if "ModelName" in new:
        kept.pop("Container", None)
        kept.pop(MODEL, None)
    if "Image" in new.get("Container", {}):
        kept.pop("ModelName", None)
        kept.pop(MODEL, None)
    container = {**kept.get("Container", {}), **new.get("Container", {})}
    return {**kept, **new} | ({"Container": container} if container else {})


def specification_summary(record: ComponentRecord) -> dict[str, Any]:
    """Return the InferenceComponentSpecificationSummary."""
    spec = dict(record.spec)
    model = spec.pop(MODEL, None)
    if "Container" in spec:
        container = dict(spec["Container"])
        if (image := container.pop("Image", None)) is not None:
            container["DeployedImage"] = _deployed(image, record)
        spec["Container"] = container
    elif model is not None:
        primary = model.get("PrimaryContainer", {})
        container = {"DeployedImage": _deployed(primary["Image"], record)} if "Image" in primary else {}
        if "ModelDataUrl" in primary:
            container["ArtifactUrl"] = primary["ModelDataUrl"]
        if "Environment" in primary:
            container["Environment"] = primary["Environment"]
        spec["Container"] = container
    if "DataCacheConfig" in spec:
        spec["DataCacheConfig"] = {"EnableCaching": spec["DataCacheConfig"]["EnableCaching"]}
    return spec


def _deployed(image: str, record: ComponentRecord) -> dict[str, Any]:
    return {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": record.created}
