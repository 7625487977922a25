"""The interface of a SageMaker endpoint that a request takes, and how the request names its adapter there.

| interface | URL | authorization | the adapter's name |
|---|---|---|---|
| INVOCATIONS | /invocations | signature | the component, `adapter` or `adapters` in the body |
| OPENAI | /openai/v1/chat/completions | bearer token | `model` |
| ROUTED | /invocations, with a route of the container in CustomAttributes | signature | `model` |

vLLM's container overwrites `model` on /invocations by the name that SageMaker sends for an adapter's
component, and without one serves the base model. On the other two interfaces it reads `model`.

Requests for the base model name none on any interface. SageMaker routes by the URL, vLLM and LMI take a
missing name for the base model's own, which an operator may have set, and TGI would take any name for an
adapter's (djl_python/lmi_vllm/vllm_async_service.py; `adapter_id` of TGI's chat request).
"""

from __future__ import annotations

import enum
import hashlib
from typing import Any

from contracts.base_routes import SageMakerTarget
from gateway.api.hidden_thought import shown_parameters
from gateway.api.schema import CHAT
from gateway.backends.base import BackendRequest
from gateway.errors import NotServed


class Interface(enum.Enum):
    """One of an endpoint's interfaces."""

    INVOCATIONS = enum.auto()
    OPENAI = enum.auto()
    ROUTED = enum.auto()


def interface_of(request: BackendRequest, target: SageMakerTarget) -> Interface:
    """Return the interface for a request.

    AWS documents the OpenAI path for chats alone, and no adapter components on it.
    """
    if target.api == "invocations" or (request.adapter is not None and target.adapters == "components"):
        return Interface.INVOCATIONS
    if target.api == "routes":
        return Interface.ROUTED
    return Interface.OPENAI if request.call.path == CHAT else Interface.INVOCATIONS


def request_body(request: BackendRequest, target: SageMakerTarget) -> dict[str, Any]:
    """Return a body in OpenAI's form.

    Raises:
        NotServed: the container could not be told the adapter, and would serve the base model.
    """
    adapter, body = request.adapter, shown_parameters(request.call.parameters)
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    if target.adapters == "reference":
        body["model"] = request.model_name
        body |= request.origin()
        if adapter is not None:
            body["adapter"] = adapter.to_dict()
    elif adapter is None:
        # Containers know the base model by names of their own, and serve it where none is given.
        return body
    elif interface_of(request, target) is not Interface.INVOCATIONS:
        body["model"] = request.model_name
    elif target.adapters == "name":
        if target.container == "vllm":
            raise NotServed(
                f"{request.call.path} is not served for adapters by this model's copies on SageMaker, whose "
                "containers read an adapter's name in chats alone. Use /v1/chat/completions."
            )
        body["adapters"] = adapter.name
    return body


def expected_model(request: BackendRequest, target: SageMakerTarget) -> str:
    """Return the model name that the container's answer must have; "" for any.

    A container that did not read the adapter's name answers by the base model, and says so.
    """
    named = target.container == "vllm" and target.adapters == "name"
    return request.adapter.name if named and request.adapter is not None else ""


def call_headers(request: BackendRequest, target: SageMakerTarget) -> dict[str, str]:
    """Return a signed call's headers: the request id for logs, the container's route, the tenant's prefix id.

    PrefixAwareId matters to endpoints that route by prefix: tenants share no computed prefixes, so each
    tenant has its own id.
    """
    attributes = f"x-request-id={request.request_id}"
    if interface_of(request, target) is Interface.ROUTED:
        attributes += f",route={request.call.path}"
    headers = {
        "X-Amzn-SageMaker-Inference-Id": request.request_id,
        "X-Amzn-SageMaker-Custom-Attributes": attributes,
    }
    if request.cache_salt:
        digest = hashlib.sha256(request.cache_salt.encode()).hexdigest()
        headers["X-Amzn-SageMaker-Prefix-Aware-Id"] = digest[:32]
    return headers
