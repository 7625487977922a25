"""Read the adapter memories of several copies in parallel, within one deadline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from typing import Final

from controlplane.deployments.models import Copy
from controlplane.deployments.placement.residency import residency_of
from controlplane.deployments.placement.residency.base import Memory
from controlplane.deployments.provisioners.base import ProvisioningError

_AT_ONCE: Final = 8


def memories_read(
    copies: Sequence[Copy], *, seconds: float, disk: bool = False
) -> dict[str, Memory | ProvisioningError]:
    """Return each copy's memory, or why it could not be read, by id in the order of `copies`.

    Args:
        seconds: limit for all copies together; a copy without an answer by then counts as away.
        disk: also read the adapters on the copies' disks.
    """
    # Shuffle the copies: if many are silent, the same ones would always run out of time.
    order = random.SystemRandom().sample(copies, len(copies))
    pool = ThreadPoolExecutor(_AT_ONCE)
    futures = {copy.pk: pool.submit(_read, copy, disk) for copy in order}
    done = wait(futures.values(), timeout=seconds).done
    pool.shutdown(wait=False, cancel_futures=True)
    late = ProvisioningError(f"does not respond within {seconds:g} s", transient=True, code="away")
    return {copy.pk: futures[copy.pk].result() if futures[copy.pk] in done else late for copy in copies}


def _read(copy: Copy, disk: bool) -> Memory | ProvisioningError:
    try:
        residency = residency_of(copy)
    except ProvisioningError as error:
        return error
    if residency is None:
        return ProvisioningError(f"{copy.pk} does not report its adapters")
    with closing(residency):
        try:
            memory = residency.memory()
            return replace(memory, disk=residency.on_disk()) if disk else memory
        except ProvisioningError as error:
            return error
