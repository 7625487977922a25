"""One name for each module of a language model, however its checkpoint or an adapter's trainer calls it.

A language model alone calls its first layer `model.layers.0`. Inside a vision-language model the same layer
is `language_model.model.layers.0` in published checkpoints and in transformers before 4.52, and
`model.language_model.layers.0` in transformers since. The class without a head (`AutoModel`), on which
embedding adapters are trained, calls it `layers.0`, or `language_model.layers.0` inside a vision-language
model. Adapters carry the names of the class that they were trained with, so the names of adapter and
checkpoint often differ. We compare the names of the language model
alone. Source: `_checkpoint_conversion_mapping` of transformers 4.52 to 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_BODY: Final = "model."
_HEAD: Final = "lm_head"
_ROOTS: Final = ("layers.", "embed_tokens", "norm")
"""A language model's modules where no prefix marks them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one kind of class calls the modules.

    Attributes:
        body: prefix of the language model's modules, in place of `model.`.
        head: path of the output head, in place of `lm_head`.
        others: prefix of all other modules, such as a vision tower.
    """

    body: str = _BODY
    head: str = _HEAD
    others: str = ""

    def common_name(self, path: str) -> str:
        """Return the common name of a module, or of a tensor, with this layout's path."""
        if path == self.head or path.startswith(f"{self.head}."):
            return _HEAD + path.removeprefix(self.head)
        if path.startswith(self.body) and (self.body or path.startswith(_ROOTS)):
            return _BODY + path.removeprefix(self.body)
        return path.removeprefix(self.others)

    def path_of(self, name: str) -> str:
        """Return this layout's path of a module with a common name."""
        if name.startswith(_BODY):
            return self.body + name.removeprefix(_BODY)
        if name == _HEAD or name.startswith(f"{_HEAD}."):
            return self.head + name.removeprefix(_HEAD)
        return self.others + name


PLAIN: Final = Layout()
"""A language model alone."""
LAYOUTS: Final = (
    Layout("language_model.model.", "language_model.lm_head"),
    Layout("model.language_model.", others="model."),
    Layout("language_model."),
)
"""Vision-language models; the last is such a model without a head."""
WITHOUT_HEAD: Final = Layout("")
"""A language model alone, without a head."""


def layout_of(paths: Iterable[str]) -> Layout:
    """Return the layout that these paths of modules or tensors have; `PLAIN` if none other fits."""
    for path in paths:
        for layout in LAYOUTS:
            if path.startswith(layout.body):
                return layout
        if path.startswith(_ROOTS[:2]):
            return WITHOUT_HEAD
    return PLAIN
