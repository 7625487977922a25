"""Options of a SageMaker job beyond the recipe: the account, the weights, the container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from contracts.recipes.recipe import Hardware, Recipe
from controlplane.deployments.containers.images import (
    DEFAULT_IMAGE,
    IMAGES,
    TENSORRT_LLM_IMAGE,
    Family,
    Image,
)
from controlplane.deployments.containers.options import secret_variable_check
from controlplane.deployments.models import Target
from controlplane.errors import InvalidInputError

_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/\S{1,900}")
_MODEL: Final = re.compile(r"[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62}")
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,255}")
_LONGEST_IMAGE: Final = 255
HOURS: Final = (1, 240)


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Options of one SageMaker job.

    Attributes:
        target: name of the target, which names the account.
        weights: s3:// prefix that SageMaker reads instead of the base's own source, as of a JumpStart model;
            "" for the base's.
        model: a SageMaker model whose weights are read instead, such as one that JumpStart made.
        accept_eula: whether the licence of `weights` is accepted.
        image: a name in IMAGES or an image URI; "" for the default on GPUs and SageMaker's choice on Neuron.
        environment: added to each technique's container; the recipe's own variables cannot be replaced.
        hours: time limit after which SageMaker fails the job.
    """

    target: str
    weights: str = ""
    model: str = ""
    accept_eula: bool = False
    image: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    hours: int = 24

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Parse and check the options. Raises InvalidInputError naming the field."""
        options = cls(**values)
        if options.weights and options.model:
            raise _wrong("weights and model exclude each other: give one")
        if options.weights and _S3.fullmatch(options.weights) is None:
            raise _wrong("weights must be s3://bucket/prefix, such as a JumpStart model's")
        if options.model and _MODEL.fullmatch(options.model) is None:
            raise _wrong("model must be the name of a SageMaker model")
        if options.accept_eula and not options.weights:
            raise _wrong("accept_eula is valid only with weights, whose license it accepts")
        if len(options.image) > _LONGEST_IMAGE:
            raise _wrong(f"image must have at most {_LONGEST_IMAGE} characters")
        if options.image:
            _image(options.image)
        for name, value in options.environment.items():
            if _VARIABLE.fullmatch(name) is None or len(value) > 256:
                raise _wrong(
                    f"environment: {name[:60]!r} must be upper-case letters, digits and _, its value at most"
                    " 256 characters"
                )
            secret_variable_check(name, field="sagemaker")
        if not HOURS[0] <= options.hours <= HOURS[1]:
            raise _wrong(f"hours must be {HOURS[0]} to {HOURS[1]}")
        return options

    def to_dict(self) -> dict[str, Any]:
        """Return every field."""
        return {**asdict(self), "environment": dict(self.environment)}

    def image_uri(self, recipe: Recipe, region: str) -> str:
        """Return the image's URI; "" leaves the choice to SageMaker, as IMAGES has none for Neuron."""
        image = self.image_of(recipe)
        return "" if image is None else image.uri(region)

    def image_of(self, recipe: Recipe) -> Image | None:
        """Return the image of the recipe's containers; None if SageMaker chooses it."""
        if self.image:
            return _image(self.image)
        if recipe.target.hardware is Hardware.NEURON:
            return None
        return IMAGES[TENSORRT_LLM_IMAGE if recipe.builds_tensorrt_engine else DEFAULT_IMAGE]


def _image(name: str) -> Image:
    """Return an LMI image, the only kind that SageMaker optimizes with. Raises InvalidInputError."""
    image = Image.from_name(name, family="" if name in IMAGES else Family.LMI)
    if image.family is not Family.LMI:
        text = f"sagemaker.image must be an LMI image, and {name} is of family {image.family}"
        raise InvalidInputError(text, field="sagemaker.image")
    return image


def target_of(options: RemoteOptions) -> Target:
    """Return the options' target. Raises InvalidInputError if it is missing or of another kind."""
    target = Target.objects.filter(name=options.target).first()
    if target is None or target.kind != Target.Kind.SAGEMAKER:
        known = Target.objects.filter(kind=Target.Kind.SAGEMAKER).values_list("name", flat=True)
        raise _wrong(
            f"target {options.target[:40]!r} of kind sagemaker does not exist;"
            f" there are: {', '.join(known) or 'none, make one first'}"
        )
    return target


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="sagemaker")
