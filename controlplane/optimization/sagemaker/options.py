"""What a job of SageMaker's is told beside the recipe: the account, the weights, the container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from contracts.recipes.recipe import Hardware, Recipe
from controlplane.deployments.containers.images import DEFAULT_IMAGE, IMAGES, Image
from controlplane.deployments.models import Target
from controlplane.deployments.secret_variables import secret_variable_check
from controlplane.errors import InvalidInputError

_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/\S{1,900}")
_MODEL: Final = re.compile(r"[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62}")
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,255}")
MOST_VARIABLES: Final = 25
"""Of one container in SageMaker's optimization jobs, the recipe's own among them."""
_LONGEST_IMAGE: Final = 255
HOURS: Final = (1, 240)


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Of one job.

    Attributes:
        target: the account's name among the targets.
        weights: s3:// prefix that SageMaker reads instead of the base's own source, as of a JumpStart model;
            "" for the base's.
        model: a SageMaker model whose weights are read instead, such as one that JumpStart made.
        accept_eula: the licence that the weights of `weights` come with is accepted.
        image: a name of our table or an address; "" for the default on GPUs and for SageMaker's own choice.
        environment: added to each technique's container, over what the recipe says.
        hours: after so many SageMaker ends the job as failed.
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
        """Raises InvalidInputError naming the field."""
        read = cls(**values)
        if read.weights and read.model:
            raise _wrong("give weights, or model: SageMaker reads one of them")
        if read.weights and _S3.fullmatch(read.weights) is None:
            raise _wrong("weights must be s3://bucket/prefix, such as a JumpStart model's")
        if read.model and _MODEL.fullmatch(read.model) is None:
            raise _wrong("model must be the name of a SageMaker model")
        if read.accept_eula and not read.weights:
            raise _wrong("accept_eula goes with weights, whose licence it accepts")
        if len(read.image) > _LONGEST_IMAGE:
            raise _wrong(f"image has at most {_LONGEST_IMAGE} characters")
        if read.image and read.image not in IMAGES:
            Image.of(read.image, family="lmi")
        for name, value in read.environment.items():
            if _VARIABLE.fullmatch(name) is None or len(value) > 256:
                raise _wrong(
                    f"environment: {name[:60]!r} must be upper-case letters, digits and _, its value at most"
                    " 256 characters"
                )
            secret_variable_check(name, field="sagemaker")
        if not HOURS[0] <= read.hours <= HOURS[1]:
            raise _wrong(f"hours must be {HOURS[0]} to {HOURS[1]}")
        return read

    def to_dict(self) -> dict[str, Any]:
        """Every field stated."""
        return {**asdict(self), "environment": dict(self.environment)}

    def image_uri(self, recipe: Recipe, region: str) -> str:
        """ "" leaves it to SageMaker, as our table has none for Neuron."""
        if self.image:
            family = "" if self.image in IMAGES else "lmi"
            return Image.of(self.image, family=family).uri(region)
        return "" if recipe.target.hardware is Hardware.NEURON else IMAGES[DEFAULT_IMAGE].uri(region)


def target_of(options: RemoteOptions) -> Target:
    """Raises InvalidInputError where there is none of this name, or it is no AWS account."""
    target = Target.objects.filter(name=options.target).first()
    if target is None or target.kind != Target.Kind.SAGEMAKER:
        known = Target.objects.filter(kind=Target.Kind.SAGEMAKER).values_list("name", flat=True)
        raise _wrong(
            f"there is no target {options.target[:40]!r} of kind sagemaker;"
            f" there are: {', '.join(known) or 'none, make one first'}"
        )
    return target


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="sagemaker")
