"""Which parameters of a request the copy's version of vLLM knows."""

from __future__ import annotations

from typing import Final

from contracts.capabilities.vllm import version_of, vllm_capability
from gateway.api.schema import CHAT, COMPLETIONS
from gateway.backends.base import BackendRequest
from gateway.errors import NotServed

_ENDPOINTS: Final = {CHAT: "chat", COMPLETIONS: "completions"}
"""Names of endpoints in the table of capabilities."""
_BUDGET: Final = "thinking_token_budget"
_VLLM: Final = "vLLM "


def demand_bounded_thought(request: BackendRequest) -> None:
    """Refuse a bound of the thought that the copy's version of vLLM would ignore.

    A copy whose version is not known gets the bound.

    Raises:
        NotServed: naming the bound.
    """
    if request.call.parameters.get(_BUDGET) is not None and is_known(request, _BUDGET, CHAT) is False:
        raise NotServed(
            f"{_BUDGET} is not served by this model's copies, which run {request.copy.engine}. Leave it out.",
            param=_BUDGET,
        )


def is_known(request: BackendRequest, parameter: str, path: str = "") -> bool | None:
    """Return whether the copy's version of vLLM knows a parameter of the request's endpoint.

    None if that is not known: for other engines, and for endpoints whose parameters are not in the table.
    """
    engine = request.copy.engine
    if not engine.startswith(_VLLM):
        return None
    version = engine.removeprefix(_VLLM)
    capability = vllm_capability(version)
    if capability is None:
        # A version that is no number tells nothing, nor does that of a build from sources without tags.
        return None if version_of(version) is None or "dev" in version else False
    parameters = capability.parameters.get(_ENDPOINTS.get(path or request.call.path, ""))
    return None if parameters is None else parameter in parameters
