"""Refuses a bound of the thought that a copy's version of vLLM would ignore."""

from __future__ import annotations

from typing import Final

from contracts.capabilities.vllm import vllm_capability
from gateway.backends.base import BackendRequest
from gateway.errors import NotServed

_BUDGET: Final = "thinking_token_budget"
_VLLM: Final = "vLLM "


def demand_bounded_thought(request: BackendRequest) -> None:
    """Refuse a bound of the thought that the copy's version of vLLM would ignore.

    A copy whose version is not known gets the bound.

    Raises:
        NotServed: naming the bound.
    """
    engine, call = request.copy.engine, request.call
    if call.parameters.get(_BUDGET) is None or not engine.startswith(_VLLM):
        return
    capability = vllm_capability(engine.removeprefix(_VLLM))
    if capability is None or _BUDGET not in capability.parameters["chat"]:
        raise NotServed(
            f"{_BUDGET} is not served by this model's copies, which run {engine}. Leave it out.",
            param=_BUDGET,
        )
