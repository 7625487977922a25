"""The bundled worker as a process of a host, and its checkpoint as a container of SageMaker's."""

from __future__ import annotations

from controlplane.deployments.containers.options import LmiOptions
from controlplane.errors import InvalidInputError


def worker_flags(options: LmiOptions) -> list[str]:
    """Return the bundled worker's start-up flags for these options."""
    flags = ["--max-num-seqs", str(options.max_rolling_batch_size)]
    if options.max_model_len:
        flags += ["--max-model-len", str(options.max_model_len)]
    # LMI's default was not chosen by the operator; the worker's own default is eight times as high.
    if options.max_loras != LmiOptions().max_loras:
        flags += ["--max-adapters-per-batch", str(options.max_loras)]
    if options.dtype != "auto":
        flags += ["--dtype", {"bf16": "bfloat16", "fp32": "float32"}[options.dtype]]
    if options.speculation != "off":
        tokens = str(options.speculation_tokens)
        flags += ["--speculation", options.speculation, "--speculation-tokens", tokens]
    if options.draft_model:
        flags += ["--draft-model", options.draft_model]
    return flags


def worker_checkpoint_check(checkpoint: str) -> None:
    """Check that the bundled worker finds weights in a SageMaker container. Raises InvalidInputError."""
    if checkpoint.startswith("hf://"):
        raise InvalidInputError(
            f"SageMaker lays no files of {checkpoint} into a container, and the bundled worker fetches none: "
            "register the base model from a folder or from S3, or choose an lmi image",
            field="image",
        )
