"""Upper bounds of the prompt tokens that a base model makes of an image, as data of the base model.

The control plane derives the rule from the checkpoint's configuration; gateways reserve tokens by it. Bills
use the backend's count, and the bound alone where the backend states none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from contracts.known_fields import known_fields

UNKNOWN_MOST: Final = 4096
"""Tokens of an image where the base model's rule is not known.

Models that cut an image into tiles use up to 13 tiles of 256 tokens (InternVL), models of fixed sizes less.
"""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The most tokens that an image of a size can take.

    Attributes:
        most: tokens of the largest image, without `extra`; 0 for a base model without a vision part.
        cell: side in pixels of the square that becomes one token; 0: every image takes `most` tokens.
        least: tokens to which a smaller image is enlarged.
        max_side: longest side in pixels, to which a larger image is reduced; 0 for no limit.
        row: tokens after each row of cells.
        extra: tokens around an image.
    """

    most: int
    cell: int = 0
    least: int = 0
    max_side: int = 0
    row: int = 0
    extra: int = 0

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(**known_fields(cls, value))

    @property
    def reads_images(self) -> bool:
        """False for a base model without a vision part."""
        return self.most > 0

    def bound(self, width: int, height: int) -> int:
        """Return the most tokens of an image; 0 for both sides if its size is not known."""
        if not self.cell or width <= 0 or height <= 0:
            return self.most + self.extra
        if self.max_side and max(width, height) > self.max_side:
            scale = self.max_side / max(width, height)
            width, height = math.ceil(width * scale), math.ceil(height * scale)
        across, down = math.ceil(width / self.cell), math.ceil(height / self.cell)
        # An image is stretched before it is cut into rows, and may be turned by its metadata.
        rows = self.row * max(across, down)
        return min(self._cells(width, height, across * down) + rows, self.most) + self.extra

    def _cells(self, width: int, height: int, cells: int) -> int:
        """Return the cells after the image is enlarged to `least` of them."""
        scale = math.sqrt(self.least * self.cell**2 / (width * height))
        if scale <= 1:
            return cells
        return max(cells, math.ceil(width * scale / self.cell) * math.ceil(height * scale / self.cell))


NO_IMAGES: Final = ImageTokens(0)
"""Rule of a base model without a vision part."""
