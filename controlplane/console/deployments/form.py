"""A deployment's form: its raw texts, and their parsed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.deployments.containers.options import DTYPES, QUANTIZE, RANKS, LmiOptions
from controlplane.errors import InvalidInputError

_NUMBERS: Final = ("min_copies", "max_copies", "min_instances", "max_instances")
_TEXTS: Final = ("instance_type", "image", "image_family", "adapter_scope")
COMPUTE: Final = ("compute-accelerators", "compute-cpus", "compute-memory_mb")
"""Resources of one copy, entered if the instance type's size or the checkpoint's shapes are unknown."""
FIELDS: Final = ("name", "target", "base_model", "hosting", "endpoint", *_NUMBERS, *_TEXTS, *COMPUTE)
"""All fields of the form, except OPTIONS."""
_CHOICES: Final = {"max_lora_rank": tuple(map(str, RANKS)), "dtype": DTYPES, "quantize": QUANTIZE}


@dataclass(frozen=True, slots=True)
class OptionField:
    """One of LMI's options as an input. `choices` is empty for a number or a text."""

    field: str
    name: str
    default: str
    choices: tuple[str, ...]


def _option_fields() -> dict[str, OptionField]:
    found = {}
    for item in fields(LmiOptions):
        choices = _CHOICES.get(item.name, ())
        if isinstance(item.default, bool):
            choices = ("", "true", "false")
        default = str(item.default).lower() if isinstance(item.default, bool) else str(item.default)
        field = OptionField(f"options-{item.name}", item.name, default, choices)
        found[field.field] = field
    return found


OPTIONS: Final[Mapping[str, OptionField]] = MappingProxyType(_option_fields())
"""LMI's options by the name of their input."""


def desired_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Parse the non-empty fields.

    Raises:
        InvalidInputError: a number is malformed.
    """
    found: dict[str, Any] = {name: values[name] for name in _TEXTS if values.get(name)}
    for name in _NUMBERS:
        if text := values.get(name):
            found[name] = _number(text, name)
    options = {
        field.name: _option(field, text) for key, field in OPTIONS.items() if (text := values.get(key))
    }
    compute = {
        name.removeprefix("compute-"): _number(text, name.replace("-", "."))
        for name in COMPUTE
        if (text := values.get(name))
    }
    return found | ({"options": options} if options else {}) | ({"compute": compute} if compute else {})


def _option(field: OptionField, text: str) -> Any:
    match getattr(LmiOptions(), field.name):
        case bool():
            return text == "true"
        case int():
            return _number(text, f"options.{field.name}")
        case float():
            return _share(text, f"options.{field.name}")
    return text


def _share(text: str, field: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(_("a share is a number such as 0.9"), field=field) from None


def _number(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise InvalidInputError(_("give a whole number"), field=field)
    return int(text)
