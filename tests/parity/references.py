"""Classes and functions of transformers and PEFT, imported at their first use.

The import takes ten CPU seconds, and every test process loads every test module.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_MODULES: Final = (
    "transformers",
    "peft",
    "peft.utils.other",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto",
    "transformers.core_model_loading",
    "transformers.initialization",
    "transformers.pytorch_utils",
)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)  # pytest looks for such names in whatever a test module has
    for module in map(import_module, _MODULES):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"neither transformers nor PEFT has {name!r}")


def load() -> None:
    """Import everything now."""
    for module in _MODULES:
        import_module(module)
