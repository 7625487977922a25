"""Registration of the corpus by the product's code, from headers alone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from contracts.adapters.config import AdapterConfigError, LoraConfig
from contracts.capabilities.traits import AdapterNeeds
from controlplane.adapters.tensors import check_tensors
from controlplane.catalog.checkpoint import Checkpoint, read_checkpoint
from controlplane.catalog.safetensors_header import read_header
from controlplane.errors import RefusedError
from tests.parity.corpus.adapters import Adapter
from tests.parity.corpus.models import HeaderOnly, Tensors, header


def register_base(model: Any, tensors: Tensors) -> Checkpoint:
    """Read the model's checkpoint as the catalogue does. Raises InvalidInputError."""
    # A class for a part of a model has that part's configuration, which states no architecture.
    stated = json.loads(model.config.to_json_string()) | {"architectures": [type(model).__name__]}
    config = json.dumps(stated).encode()
    return read_checkpoint(HeaderOnly(type(model).__name__, config, tensors))


def check_adapter(adapter: Adapter, base: Checkpoint, tensors: Tensors | None = None) -> AdapterNeeds:
    """Check the adapter's configuration and header as validation does.

    Args:
        tensors: in place of the adapter's.

    Raises:
        RefusedError: names the tensor or field.
    """
    head, size = header(adapter.tensors if tensors is None else tensors)
    try:
        config = LoraConfig.from_bytes(adapter.config)
    except AdapterConfigError as error:
        raise RefusedError(str(error)) from error
    found = read_header(io.BytesIO(head), size=size)
    return check_tensors(found, config, base.modules, architecture=base.architecture)[0]


def _transposed(tensors: Tensors, name: str) -> Tensors:
    return _reshaped(tensors, name, tensors[name][1][::-1])


def _of_other_rank(tensors: Tensors, name: str) -> Tensors:
    rank, *rest = tensors[name][1]
    return _reshaped(tensors, name, (rank + 1, *rest))


def _of_other_width(tensors: Tensors, name: str) -> Tensors:
    rank, width, *rest = tensors[name][1]
    return _reshaped(tensors, name, (rank, width + 1, *rest))


def _without(tensors: Tensors, name: str) -> Tensors:
    return {key: value for key, value in tensors.items() if key != name}


def _renamed(tensors: Tensors, name: str) -> Tensors:
    return {**_without(tensors, name), name.replace(".lora_", ".absent.lora_"): tensors[name]}


def _reshaped(tensors: Tensors, name: str, shape: tuple[int, ...]) -> Tensors:
    return {**tensors, name: (tensors[name][0], shape)}


MUTATIONS: Final[tuple[Callable[[Tensors, str], Tensors], ...]] = (
    _transposed,
    _of_other_rank,
    _of_other_width,
    _without,
    _renamed,
)
"""Ways to break an adapter at one of its A matrices."""


def accepted_mutations(adapter: Adapter, base: Checkpoint) -> Iterator[tuple[str, bool]]:
    """Yield each mutation of the adapter's first A matrix, and True if registration accepts it."""
    name = next(name for name in sorted(adapter.tensors) if ".lora_A" in name or ".lora_embedding_A" in name)
    for mutate in MUTATIONS:
        try:
            check_adapter(adapter, base, mutate(adapter.tensors, name))
        except RefusedError:
            yield f"{mutate.__name__} {name}", False
        else:
            yield f"{mutate.__name__} {name}", True
