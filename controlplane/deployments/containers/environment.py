"""Environment variables that a container starts with, in the words of its family."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.deployments.containers.images import Family, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.containers.pytorch import pytorch_environment
from controlplane.deployments.containers.speculation import speculative_config
from controlplane.deployments.containers.tgi import tgi_environment
from controlplane.deployments.containers.triton import triton_environment
from controlplane.deployments.containers.vllm import vllm_environment


def container_environment(
    image: Image,
    options: LmiOptions,
    *,
    model: str,
    served_name: str,
    accelerators: int,
    revision: str = "",
    adapters: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment variables that a container starts with.

    Args:
        model: location of the checkpoint: `s3://...`, a hub id, or a folder in the container.
        revision: of a hub id.
        adapters: folder in the container by engine name, for a family that loads adapters at its start alone.

    Raises:
        InvalidInputError: a variable would exceed SageMaker's limit.
    """
    match image.family:
        case Family.LMI:
            env = {"OPTION_MODEL_ID": model, **options.environment(image, accelerators=accelerators)}
            return env | ({"OPTION_REVISION": revision} if revision else {})
        case Family.TGI:
            return tgi_environment(
                options, model=model, revision=revision, accelerators=accelerators, adapters=adapters or {}
            )
        case Family.TRITON:
            return triton_environment()
        case Family.VLLM:
            return vllm_environment(
                options,
                model=model,
                revision=revision,
                served_name=served_name,
                accelerators=accelerators,
                adapters=adapters or {},
            )
        case Family.PYTORCH:
            return pytorch_environment()
        case Family.WORKER:
            return _worker_environment(options, served_name)


def _worker_environment(options: LmiOptions, served_name: str) -> dict[str, str]:
    env = {
        "OPTION_SERVED_MODEL_NAME": served_name,
        "OPTION_MAX_ROLLING_BATCH_SIZE": str(options.max_rolling_batch_size),
        "GRAFTWORK_TRUST_NETWORK": "yes",
    }
    if options.dtype != "auto":
        env["OPTION_DTYPE"] = options.dtype
    if options.max_model_len:
        env["OPTION_MAX_MODEL_LEN"] = str(options.max_model_len)
    # LMI's default was not chosen by the operator; the worker's own default is eight times as high.
    if options.max_loras != LmiOptions().max_loras:
        env["OPTION_MAX_LORAS"] = str(options.max_loras)
    if options.speculation != "off":
        env["OPTION_SPECULATIVE_CONFIG"] = speculative_config(
            options.speculation, options.speculation_tokens, options.draft_model
        )
    return env
