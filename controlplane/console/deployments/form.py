"""A deployment's form: its fields, and their nested values as the REST API takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

from controlplane.deployments.containers.options import DTYPES, QUANTIZE, RANKS, ROLLING_BATCHES, LmiOptions
from controlplane.deployments.containers.served_options import option_servers
from controlplane.deployments.containers.speculation import METHODS
from controlplane.deployments.models import Target
from controlplane.deployments.serializers import DeploymentInput

COMPUTE: Final = ("compute-accelerators", "compute-cpus", "compute-memory_mb", "compute-concurrency")
"""Resources of one copy, entered if the instance type's size or the checkpoint's shapes are unknown, and the
concurrency by which the KV cache is sized otherwise."""
_NOT_ASKED: Final = ("urls", "options", "environment", "compute")
_LISTS: Final = ("fallback_instance_types",)
"""Fields whose entries are separated by blanks."""
FIELDS: Final = (*(name for name in DeploymentInput().get_fields() if name not in _NOT_ASKED), *COMPUTE)
"""All fields of the form, except OPTIONS."""
_CHOICES: Final = {
    "max_lora_rank": tuple(map(str, RANKS)),
    "dtype": DTYPES,
    "quantize": QUANTIZE,
    "rolling_batch": ROLLING_BATCHES,
    "speculation": METHODS,
}


@dataclass(frozen=True, slots=True)
class OptionField:
    """One of LMI's options as an input.

    Attributes:
        choices: empty for a number or a text.
        servers: names of the servers in which it has an effect.
    """

    field: str
    name: str
    default: str
    choices: tuple[str, ...]
    servers: str


def _option_fields() -> dict[str, OptionField]:
    found = {}
    for item in fields(LmiOptions):
        choices = _CHOICES.get(item.name, ())
        if isinstance(item.default, bool):
            choices = ("", "true", "false")
        default = str(item.default).lower() if isinstance(item.default, bool) else str(item.default)
        servers = ", ".join(option_servers(item.name))
        field = OptionField(f"options-{item.name}", item.name, default, choices, servers)
        found[field.field] = field
    return found


OPTIONS: Final[Mapping[str, OptionField]] = MappingProxyType(_option_fields())
"""LMI's options by the name of their input."""


_SAGEMAKER: Final = (
    "endpoint",
    "instance_type",
    "fallback_instance_types",
    "min_instances",
    "max_instances",
    "image",
    "image_family",
    *COMPUTE,
)
"""Fields that the form shows for targets of kind sagemaker alone."""


def defaults(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a new form: those that a link filled in, and one copy."""
    return {**values, "min_copies": values["min_copies"] or "1", "max_copies": values["max_copies"] or "1"}


def asked_of(kind: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that a target's kind takes: the form hides the other fields, and keeps them."""
    others = set() if kind == Target.Kind.SAGEMAKER else set(_SAGEMAKER)
    if kind == Target.Kind.OPENAI_HTTP:
        others |= {"min_copies", "max_copies", *OPTIONS}
    return {name: text for name, text in values.items() if name not in others}


def nested(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the non-empty values as the REST API takes them: `options-dtype` is `dtype` of `options`."""
    found: dict[str, Any] = {}
    for name, text in values.items():
        group, _dash, inner = name.partition("-")
        if text and inner:
            value = _option(text, type(getattr(LmiOptions(), inner))) if name in OPTIONS else text
            found.setdefault(group, {})[inner] = value
        elif text:
            found[name] = text.split() if name in _LISTS else text
    return found


def _option(text: str, kind: type[Any]) -> Any:
    """Return the option in its type; a malformed number stays a text, which is refused by name."""
    try:
        return text == "true" if kind is bool else kind(text)
    except ValueError:
        return text
