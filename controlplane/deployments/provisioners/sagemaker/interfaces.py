"""How gateways call the containers of a deployment: the fields of `SageMakerTarget` that say it."""

from __future__ import annotations

from controlplane.deployments.containers.images import DISTINCT, FORMS, Family, Image
from controlplane.deployments.models import Copy, Target


def container_interface(image: Image, target: Target, *, by_name: bool) -> dict[str, str]:
    """Return `api` and `container` of the copies' route.

    vLLM reads an adapter's name on its own routes alone. Some of its images take a route in the custom
    attributes; the others get chats by the endpoint's OpenAI path. Otherwise the target chooses the OpenAI
    path, for images that answer chats in OpenAI's form.

    Args:
        by_name: requests name adapters that the container has in its own files.
    """
    container = image.family.value if image.family in DISTINCT else Copy.Container.LMI.value
    must_name = by_name and image.family is Family.VLLM
    api = Copy.Api.INVOCATIONS
    if must_name and image.reads_routes:
        api = Copy.Api.ROUTES
    elif must_name or (target.openai_path and image.family not in FORMS):
        api = Copy.Api.OPENAI
    return {"api": api.value, "container": container}
