"""The speculator that a configuration asks for."""

from __future__ import annotations

import torch

from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.config import EngineConfig
from worker_engine.speculation.base import Proposer
from worker_engine.speculation.draft_model import DraftModel
from worker_engine.speculation.ngram import NgramProposer
from worker_engine.speculation.speculator import Speculator
from worker_engine.text.tokenizer import ChatTokenizer


def build_speculator(
    config: EngineConfig,
    model: ModelConfig,
    tokenizer: ChatTokenizer,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Speculator | None:
    """None where speculation is off. Raises ConfigError, CheckpointError of the draft model."""
    if config.speculation == "off":
        return None
    proposer: Proposer = NgramProposer()
    if config.draft_model is not None:
        proposer = DraftModel(config, config.draft_model, model, tokenizer, dtype=dtype, device=device)
    return Speculator(
        proposer, most=config.speculation_tokens, device=device, eos=frozenset(model.eos_token_ids)
    )
