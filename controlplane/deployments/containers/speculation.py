"""Speculative decoding of containers: its methods, the draft model's location, and vLLM's configuration."""

from __future__ import annotations

import json
from typing import Any, Final

from contracts.recipes.recipe import Speculation
from controlplane.deployments.containers.channels import DRAFT_CHANNEL, channel_folder
from controlplane.deployments.containers.images import Family, Image

PROVIDED: Final = "sagemaker"
"""Method whose draft model SageMaker provides; the container finds out its kind."""
METHODS: Final = ("off", "ngram", "draft", PROVIDED)
_DRAFT_SOURCES: Final = ("s3://", "hf://", "/")


def speculation_error(image: Image, method: str, tokens: int, draft_model: str) -> tuple[str, str]:
    """Return (option, what is wrong with it), or ("", "") if the image supports the options."""
    if (method in ("draft", PROVIDED)) != bool(draft_model):
        return "draft_model", f"is required for speculation 'draft' and {PROVIDED!r}, and valid only for them"
    if tokens != Speculation().tokens and method in ("off", PROVIDED):
        return "speculation_tokens", "is valid only with speculation ngram or draft: set speculation too"
    if method == PROVIDED:
        return _provided_error(image, draft_model)
    if draft_model and not draft_model.startswith(_DRAFT_SOURCES):
        return "draft_model", "must be s3://bucket/prefix, hf://organization/name, or a folder of the host"
    if draft_model.startswith("hf://") and image.family is Family.WORKER:
        return "draft_model", "must be in S3 or in a folder: the bundled worker downloads no model"
    if image.family is Family.LMI and method not in ("off", *image.speculation):
        text = "use lmi-0.34.0 or newer for ngram, and lmi-0.36.0 or newer for draft"
        return "speculation", f"{method!r} is not supported by {image.name}: {text}"
    return "", ""


def _provided_error(image: Image, draft_model: str) -> tuple[str, str]:
    """Return what is wrong with a draft model that SageMaker provides, as `speculation_error`."""
    if image.family is not Family.LMI or image.neuron or image.tensorrt_llm:
        return "speculation", f"{PROVIDED!r} is not supported by {image.name}: choose an lmi image"
    if not draft_model.startswith("s3://"):
        return "draft_model", "must be the s3:// location of the draft model in JumpStart's model"
    return "", ""


def speculative_config(method: str, tokens: int, draft_model: str) -> str:
    """Return OPTION_SPECULATIVE_CONFIG, which is vLLM's `--speculative-config`.

    Args:
        method: "ngram" or "draft".
        tokens: most draft tokens per step.
        draft_model: `hf://...`, or `s3://...`, whose files SageMaker stores in the container.
    """
    config: dict[str, Any] = {"num_speculative_tokens": tokens}
    if method == "ngram":
        # The bundled worker looks up the same lengths.
        return json.dumps({"method": "ngram", **config, "prompt_lookup_max": 4, "prompt_lookup_min": 2})
    name, _, revision = draft_model.removeprefix("hf://").partition("@")
    config |= {
        "method": "draft_model",
        "model": channel_folder(DRAFT_CHANNEL) if name.startswith("s3://") else name,
    }
    return json.dumps(config | ({"revision": revision} if revision else {}))
