"""Reads the quantization of a checkpoint from config.json, in the compressed-tensors, AutoAWQ, GPTQ and
MXFP4 formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from worker_engine.checkpoint.config_fields import Fields

if TYPE_CHECKING:  # configuration readers must not import torch
    from kernels.quantization.weight import Coding

CompressedForm = Literal["pack-quantized", "int-quantized", "float-quantized", "mxfp4-pack-quantized"]
Form = CompressedForm | Literal["awq", "gptq", "mxfp4"]
"""Storage format of the codes; those of `CompressedForm` are from compressed-tensors, "mxfp4" is of stacked
experts."""
_COMPRESSED: Final[tuple[CompressedForm, ...]] = get_args(CompressedForm)

GROUPS: Final = (32, 64, 128)
OWN_SECTION: Final = "graftwork"
"""Section of config.json for settings of this worker only. It is separate because other engines reject
unknown fields inside quantization_config.
"""
_IGNORED: Final = {
    "compressed-tensors": (
        "config_groups",
        "format",
        "global_compression_ratio",
        "ignore",
        "kv_cache_scheme",
        "quant_method",
        "quantization_status",
        "sparsity_config",
        "transform_config",
        "version",
    ),
    "awq": (
        "backend",
        "bits",
        "do_fuse",
        "fuse_max_seq_len",
        "group_size",
        "modules_to_fuse",
        "modules_to_not_convert",
        "quant_method",
        "version",
        "zero_point",
    ),
    "mxfp4": ("dequantize", "modules_to_not_convert", "quant_method"),
    "gptq": (
        "bits",
        "checkpoint_format",
        "damp_percent",
        "desc_act",
        "group_size",
        "lm_head",
        "meta",
        "quant_method",
        "static_groups",
        "sym",
        "true_sequential",
    ),
}
"""Fields that may be present; those that affect the result are checked below."""
_MXFP4_WEIGHTS: Final = {
    "num_bits": 4,
    "strategy": "group",
    "group_size": 32,
    "symmetric": True,
    "scale_dtype": "torch.uint8",
}
_FP8_INPUTS: Final = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
_WEIGHT_FIELDS: Final = (
    "actorder",
    "block_structure",
    "dynamic",
    "group_size",
    "num_bits",
    "observer",
    "observer_kwargs",
    "scale_dtype",
    "strategy",
    "symmetric",
    "type",
    "zp_dtype",
)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one module's weights are quantized.

    Attributes:
        group: inputs that share a scale; 0 for one scale per channel.
    """

    bits: int
    group: int
    symmetric: bool
    coding: Coding = "whole"

    @property
    def native_bits(self) -> int:
        """Bits of a weight in the native loops' layout, which hold E2M1 as whole numbers of 8 bits."""
        return 8 if self.coding == "e2m1" else self.bits


@dataclass(frozen=True, slots=True)
class Quantization:
    """Which modules are quantized, and how.

    Attributes:
        targets: schemes by module name, regular expression (`re:...`) or class (`Linear`).
        int8_head: round the unquantized output head to 8 bits when it is loaded.
    """

    form: Form
    targets: Mapping[str, Scheme]
    int8_head: bool = False

    def scheme(self, module: str) -> Scheme | None:
        """Return the scheme of a module; names take precedence over expressions, and those over the class."""
        if module in self.targets:
            return self.targets[module]
        for target, scheme in self.targets.items():
            if target.startswith("re:") and re.match(target.removeprefix("re:"), module):
                return scheme
        return self.targets.get("Linear")


def read_quantization(fields: Fields) -> Quantization | None:
    """Return the checkpoint's quantization; None if its weights are not quantized.

    Raises:
        CheckpointError: naming the field that is missing, malformed or not supported.
    """
    section, int8_head = fields.section("quantization_config"), _int8_head(fields)
    if section is None:
        if int8_head:
            raise fields.error(OWN_SECTION, "has head 'int8', which goes with a quantization_config alone")
        return None
    method = section.text("quant_method")
    if method not in _IGNORED:
        raise section.error("quant_method", f"{method!r} is not served, only {', '.join(_IGNORED)}")
    section.only(*_IGNORED[method])
    readers = {"awq": _awq, "gptq": _gptq, "mxfp4": _mxfp4, "compressed-tensors": _compressed}
    return replace(readers[method](section), int8_head=int8_head)


def _mxfp4(section: Fields) -> Quantization:
    """Return the scheme of stacked experts: names of tensors say which; no other weights have this format."""
    return Quantization("mxfp4", {"Linear": Scheme(4, 32, symmetric=True, coding="e2m1")})


def _int8_head(fields: Fields) -> bool:
    own = fields.section(OWN_SECTION)
    if own is None:
        return False
    own.only("head")
    own.must_be("head", "int8")
    return "head" in own


def _awq(section: Fields) -> Quantization:
    section.must_be("bits", 4)
    if not section.flag("zero_point", True):
        raise section.error("zero_point", "false is not served: AutoAWQ's checkpoints have zeros")
    if (version := section.text("version", "gemm")).lower() != "gemm":
        raise section.error("version", f"{version!r} is not served, only 'gemm'")
    return Quantization("awq", {"Linear": Scheme(4, _group_size(section), symmetric=False)})


def _gptq(section: Fields) -> Quantization:
    for name, expected in (
        ("bits", 3),
        ("desc_act", False),
        ("checkpoint_format", "gptq"),
        ("lm_head", False),
    ):
        section.must_be(name, expected)
    return Quantization("gptq", {"Linear": Scheme(3, _group_size(section), symmetric=False)})


def _compressed(section: Fields) -> Quantization:
    named = section.text("format")
    form = next((one for one in _COMPRESSED if one == named), None)
    if form is None:
        raise section.error("format", f"{named!r} is not served, only {', '.join(_COMPRESSED)}")
    section.must_be_absent("kv_cache_scheme", "keys and values are kept as the model computes them")
    section.must_be_absent("transform_config", "weights are taken as they are")
    if (sparsity := section.section("sparsity_config")) is not None:
        sparsity.must_be("format", "dense")
    groups = section.section("config_groups")
    if groups is None:
        raise section.error("config_groups", "is missing")
    targets: dict[str, Scheme] = {}
    for name in groups.names:
        group = groups.section(name)
        if group is None:
            raise groups.error(name, "must be an object that is not empty")
        group.only("format", "input_activations", "output_activations", "targets", "weights")
        group.must_be("format", form)
        _activations(group, form)
        for target in _targets(group):
            targets[target] = _scheme(group, form)
    return Quantization(form, targets)


def _activations(group: Fields, form: CompressedForm) -> None:
    """Check that only FP8 quantizes activations, dynamically per token; other formats must not."""
    group.must_be_absent("output_activations", "only inputs and weights are quantized here")
    if form != "float-quantized":
        group.must_be_absent("input_activations", "only weights are quantized here")
        return
    inputs = group.section("input_activations")
    if inputs is None:
        raise group.error("input_activations", "is missing: FP8 weights are served with inputs in FP8")
    inputs.only(*_WEIGHT_FIELDS)
    for name, expected in _FP8_INPUTS.items():
        inputs.must_be(name, expected)


def _targets(group: Fields) -> tuple[str, ...]:
    targets = group.texts("targets")
    if not targets:
        raise group.error("targets", "is missing")
    for target in targets:
        if target.startswith("re:"):
            try:
                re.compile(target.removeprefix("re:"))
            except re.error as error:
                raise group.error("targets", f"{target!r} is not a regular expression: {error}") from error
    return targets


def _scheme(group: Fields, form: CompressedForm) -> Scheme:
    weights = group.section("weights")
    if weights is None:
        raise group.error("weights", "is missing")
    weights.only(*_WEIGHT_FIELDS)
    floats = form in ("float-quantized", "mxfp4-pack-quantized")
    weights.must_be("type", "float" if floats else "int")
    weights.must_be("dynamic", False)
    if weights.text("actorder", "static") not in ("static", "weight"):
        raise weights.error("actorder", "is not served: inputs lie in their own order")
    bits, strategy = weights.whole("num_bits"), weights.text("strategy")
    symmetric = weights.flag("symmetric", True)
    if form == "mxfp4-pack-quantized":
        for field, expected in _MXFP4_WEIGHTS.items():
            weights.must_be(field, expected)
        return Scheme(4, 32, symmetric=True, coding="e2m1")
    if (bits, strategy) == (8, "channel"):
        if not symmetric:
            raise weights.error("symmetric", "false is not served with num_bits 8")
        return Scheme(8, 0, symmetric=True, coding="e4m3" if form == "float-quantized" else "whole")
    if (bits, strategy, form) == (4, "group", "pack-quantized"):
        return Scheme(4, _group_size(weights), symmetric)
    raise weights.error(
        "num_bits",
        f"{bits} with strategy {strategy!r} in {form!r} is not served, only 4 with 'group' in "
        "'pack-quantized', and 8 with 'channel'",
    )


def _group_size(fields: Fields) -> int:
    size = fields.whole("group_size", least=-1)
    if size not in GROUPS:
        raise fields.error("group_size", f"{size} is not served, only {', '.join(map(str, GROUPS))}")
    return size
