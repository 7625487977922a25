"""Derives how many tokens an image takes from a checkpoint's configuration.

Sources: transformers 5.23, `models/<model_type>/processing_*.py` and `image_processing_*.py`, whose rules
vLLM applies too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, Final

from contracts.image_tokens import NO_IMAGES, UNKNOWN_MOST, ImageTokens

_SECTIONS: Final = (
    "vision_config",
    "visual",
    "vit_config",
    "vision_tower",
    "mm_vision_tower",
    "img_processor",
)
"""Where classes keep the settings of their vision part."""
_WITHOUT_SECTION: Final = frozenset({"chameleon", "emu3", "fuyu", "molmo"})
"""Types of models that read images and have no such section."""
_MAX_TOKENS: Final = 16_384
"""Qwen's published limit of an image; its configuration may state another."""
_MAX_RATIO: Final = 200
"""Qwen's processor refuses images of a larger ratio of sides, and keeps at least one row."""
_MARKS: Final = 2
"""Tokens that begin and end an image."""
_MOST: Final = 1 << 20
Config = Mapping[str, Any]


def image_rule(config: Config, processor: Config) -> ImageTokens:
    """Return the bound of an image's tokens; `most` is 0 for a model without a vision part.

    Args:
        config: content of config.json.
        processor: content of preprocessor_config.json or of processor_config.json's image_processor; may be
            empty.
    """
    vision = _vision(config)
    if vision is None:
        return NO_IMAGES
    kind = str(config.get("model_type"))
    if vision.get("model_type") == "pixtral":
        kind = "pixtral"
    rule = next((rule for begin, rule in _RULES if kind.startswith(begin)), None)
    try:
        found = rule(config, vision, processor) if rule else None
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        found = None  # the configuration holds another kind of value
    right = found is not None and found.reads_images and all(0 <= item < _MOST for item in astuple(found))
    return found if found is not None and right else ImageTokens(UNKNOWN_MOST)


def _vision(config: Config) -> Config | None:
    """Return the settings of the vision part, perhaps empty; None for a model without one."""
    parts = [part for part in (config, config.get("thinker_config")) if isinstance(part, Mapping)]
    for found in (part.get(name) for part in parts for name in _SECTIONS):
        if isinstance(found, dict):
            return found
        if found:
            return {}
    return {} if config.get("model_type") in _WITHOUT_SECTION else None


def _qwen(config: Config, vision: Config, processor: Config) -> ImageTokens:
    """Squares of patches, between a least and a largest number of pixels."""
    cell = _side(vision, "patch_size", 14) * _side(vision, "spatial_merge_size", 2)
    size = processor.get("size") or {}
    pixels = processor.get("max_pixels") or size.get("longest_edge") or _MAX_TOKENS * cell**2
    least = processor.get("min_pixels") or size.get("shortest_edge") or 64 * cell**2
    most = max(int(pixels) // cell**2, _MAX_RATIO)
    return ImageTokens(most, cell, least=math.ceil(least / cell**2), extra=_MARKS)


def _pixtral(config: Config, vision: Config, processor: Config) -> ImageTokens:
    """Squares of patches in rows that each end in a token; the longest side is bounded."""
    cell = _side(vision, "patch_size", 16) * _side(config, "spatial_merge_size", 1)
    size = processor.get("size") or {}
    side = int(size.get("longest_edge") or vision.get("image_size") or 1540)
    rows = math.ceil(side / cell)
    return ImageTokens(rows * (rows + 1), cell, max_side=side, row=1)


def _gemma3(config: Config, vision: Config, processor: Config) -> ImageTokens:
    """A fixed number for an image, and for each crop where the processor makes some."""
    tokens = int(config.get("mm_tokens_per_image") or 256)
    crops = int(processor.get("pan_and_scan_max_num_crops") or 4) if processor.get("do_pan_and_scan") else 0
    # Each has two marks and four line breaks; crops are introduced by a sentence.
    return ImageTokens((1 + crops) * tokens, extra=(1 + crops) * 6 + (24 if crops else 0))


def _soft_tokens(config: Config, vision: Config, processor: Config) -> ImageTokens:
    """A fixed number, of which a small image takes less."""
    tokens = processor.get("max_soft_tokens") or config.get("vision_soft_tokens_per_image") or 280
    return ImageTokens(int(tokens), extra=_MARKS)


def _llava(config: Config, vision: Config, processor: Config) -> ImageTokens:
    """The patches of a fixed square, and one token of its class."""
    return ImageTokens((_side(vision, "image_size", 336) // _side(vision, "patch_size", 14)) ** 2 + 1)


def _paligemma(config: Config, vision: Config, processor: Config) -> ImageTokens:
    patches = (_side(vision, "image_size", 224) // _side(vision, "patch_size", 14)) ** 2
    return ImageTokens(int(vision.get("num_image_tokens") or patches))


def _internvl(config: Config, vision: Config, processor: Config) -> ImageTokens:
    """Tiles of a fixed size, and a thumbnail."""
    tiles = int(config.get("max_dynamic_patch") or processor.get("max_patches") or 12) + 1
    size = int(config.get("force_image_size") or 0) or _side(vision, "image_size", 448)
    patches = (size // _side(vision, "patch_size", 14)) ** 2
    return ImageTokens(
        math.ceil(tiles * patches * float(config.get("downsample_ratio") or 0.5) ** 2), extra=_MARKS
    )


def _side(section: Config, name: str, default: int) -> int:
    """Return a side in pixels, the longer one of a rectangle."""
    value = section.get(name) or default
    return max(map(int, value)) if isinstance(value, list) else int(value)


_RULES: Final[tuple[tuple[str, Callable[[Config, Config, Config], ImageTokens]], ...]] = (
    *((f"qwen{name}", _qwen) for name in ("2_vl", "2_5_vl", "2_5_omni", "3_vl", "3_5", "3_omni")),
    ("mistral3", _pixtral),
    ("pixtral", _pixtral),
    ("gemma3n", _soft_tokens),
    ("gemma3", _gemma3),
    ("gemma4", _soft_tokens),
    ("llava_next", lambda *_: ImageTokens(UNKNOWN_MOST)),
    ("llava_onevision", lambda *_: ImageTokens(2 * UNKNOWN_MOST)),
    ("llava", _llava),
    ("vipllava", _llava),
    ("paligemma", _paligemma),
    ("internvl", _internvl),
)
"""The rule of each model type, by its beginning."""
