"""Merges sharded weights into one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from graftwork.errors import ConfigurationError

SHARD_INDEX: Final = "adapter_model.safetensors.index.json"


def merge_shards(source: Path, target: Path) -> None:
    """Writes the tensors of a folder's shards to one file. Needs torch and safetensors.

    Raises:
        ConfigurationError: the index or a shard is missing or damaged, or a shard lacks a tensor.
    """
    # Both take a second to import, and most commands need neither.
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    try:
        places: dict[str, str] = json.loads((source / SHARD_INDEX).read_bytes())["weight_map"]
        shards = {name: load_file(source / Path(name).name) for name in sorted(set(places.values()))}
        tensors: dict[str, Any] = {name: shards[shard][name] for name, shard in places.items()}
        save_file(tensors, target, metadata={"format": "pt"})
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise ConfigurationError(f"the shards in {source} cannot be read: {error}") from error
    except KeyError as error:
        raise ConfigurationError(f"the shards in {source} have no {error}") from error
