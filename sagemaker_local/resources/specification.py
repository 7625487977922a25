"""InferenceComponentSpecification: validation, updates and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.resources.models import demand_container_metrics
from sagemaker_local.resources.pools import BY_TYPE, specification_for
from sagemaker_local.resources.records import ComponentRecord
from sagemaker_local.resources.store import Region

MODEL: Final = "Model"
"""Key of a base's specification with its model: CreateModel's input, since the model may be deleted."""
_ADAPTER_MEMBERS: Final = frozenset({"BaseInferenceComponentName", "Container"})


def base_specification(
    request: Mapping[str, Any], types: list[str], region: Region, old: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a base's specification; with several instance types, one for each under BY_TYPE.

    Args:
        types: of the variant.
        old: specification that an update changes.

    Raises:
        ValidationException: it is incomplete, or a type has none.
    """
    if "Specifications" not in request or len(types) == 1:
        given = choose_specification(request, types[0])
        return demand_base(merged(old or {}, given), region)
    specs = {
        kind: demand_base(
            merged(specification_for(old or {}, kind), choose_specification(request, kind)), region
        )
        for kind in types
    }
    return {**specs[types[0]], BY_TYPE: specs}


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
    demand_container_metrics(container)
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
    kept = {name: value for name, value in old.items() if name != BY_TYPE}
    if "ModelName" in new:
        kept.pop("Container", None)
        kept.pop(MODEL, None)
    if "Image" in new.get("Container", {}):
        kept.pop("ModelName", None)
        kept.pop(MODEL, None)
    container = {**kept.get("Container", {}), **new.get("Container", {})}
    return {**kept, **new} | ({"Container": container} if container else {})


def specification_summaries(record: ComponentRecord) -> dict[str, Any]:
    """Return Specification, or Specifications with one summary for each instance type."""
    if BY_TYPE not in record.spec:
        return {"Specification": _summary(record, record.spec)}
    found = [{**_summary(record, spec), "InstanceType": kind} for kind, spec in record.spec[BY_TYPE].items()]
    return {"Specifications": found}


def _summary(record: ComponentRecord, given: Mapping[str, Any]) -> dict[str, Any]:
    spec = dict(given)
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
