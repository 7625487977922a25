"""Compute requirements of a deployment's copies."""

from __future__ import annotations

import math
from dataclasses import replace

from django.db.models import Sum

from controlplane.catalog.models import BaseModel
from controlplane.deployments.containers.images import DEFAULT_IMAGE, Family, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.models import Deployment
from controlplane.deployments.sizing.instances import INSTANCES
from controlplane.deployments.sizing.requirements import Load, Requirements, Shape, requirements
from controlplane.errors import InvalidInputError


def requirements_of(deployment: Deployment) -> Requirements:
    """Return the compute requirements of one copy, by the checkpoint's shapes and the options.

    Raises:
        InvalidInputError: the instance type is unknown, or a copy does not fit; the message says what would.
    """
    image = Image.from_name(deployment.image or DEFAULT_IMAGE, family=deployment.image_family)
    options = LmiOptions.from_values(deployment.options, image, hosting=deployment.hosting)
    draft = BaseModel.objects.filter(source=options.draft_model).first() if options.draft_model else None
    load = _load(deployment, options, _shape(draft) if draft else None)
    load = replace(load, devices=_devices(deployment, options, image))
    found = requirements(_shape(deployment.base_model, image), deployment.instance_type, load)
    if options.draft_model and draft is None:
        text = f"the draft model's size is unknown and not included: register {options.draft_model}"
        found = replace(found, reasons=(*found.reasons, f"{text} as a base model"))
    return found


def _devices(deployment: Deployment, options: LmiOptions, image: Image) -> int:
    """Return the accelerators that a copy takes in any case; 0 for the fewest that suffice."""
    if options.tensor_parallel:
        # Neuron's devices have two cores each.
        return math.ceil(options.tensor_parallel / 2) if image.neuron else options.tensor_parallel
    instance = INSTANCES.get(deployment.instance_type)
    whole = deployment.hosting == Deployment.Hosting.ENDPOINT and image.family is not Family.WORKER
    # A copy has its whole instance, so it uses all accelerators that its KV heads can be divided over.
    if (
        instance is None
        or not whole
        or _shape(deployment.base_model).kv_width % max(1, instance.accelerators)
    ):
        return 0
    return instance.accelerators


def concurrency_of(deployment: Deployment, options: LmiOptions) -> int:
    """Return the stated `compute.concurrency`; 0 without one. Raises InvalidInputError."""
    stated = deployment.compute.get("concurrency", 0)
    most = options.max_rolling_batch_size
    if not isinstance(stated, int | float) or stated != int(stated) or not 0 <= stated <= most:
        text = f"compute.concurrency must be a whole number up to max_rolling_batch_size, which is {most}"
        raise InvalidInputError(text, field="compute.concurrency")
    return int(stated)


def _shape(base: BaseModel, image: Image | None = None) -> Shape:
    weights = base.files.filter(name__endswith=".safetensors").aggregate(total=Sum("size"))["total"] or 0
    if image is not None and image.family is Family.WORKER and base.quantization == "mxfp4":
        weights *= 2  # the worker holds 8 bits of each weight of 4
    try:
        return Shape.from_modules(
            base.modules, dtype=base.dtype, max_model_len=base.max_model_len, file_bytes=weights
        )
    except InvalidInputError as error:
        text = f"{error}: set compute requirements manually"
        raise InvalidInputError(text, field="compute") from error


def _load(deployment: Deployment, options: LmiOptions, draft: Shape | None) -> Load:
    serves_adapters = options.enable_lora
    return Load(
        sequences=options.max_rolling_batch_size,
        concurrency=concurrency_of(deployment, options),
        tokens=options.max_model_len,
        max_loras=options.max_loras if serves_adapters else 0,
        max_lora_rank=options.max_lora_rank,
        max_cpu_loras=options.cpu_loras if serves_adapters else 0,
        draft=draft,
        gpu_memory_utilization=options.gpu_memory_utilization,
    )
