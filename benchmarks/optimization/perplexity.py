"""Perplexity of a checkpoint as the worker computes it, on text in pieces of one length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from kernels.lora import Segments
from worker_engine.config import PAGE_SIZE
from worker_engine.layers.attention import AttentionPlan, KVCache
from worker_engine.model_runner import choose_dtype
from worker_engine.models import load_config, load_model
from worker_engine.models.decoder import Batch
from worker_engine.text.tokenizer import ChatTokenizer

LENGTH: Final = 512
_CPU: Final = torch.device("cpu")


@torch.inference_mode()
def perplexity(folder: Path, texts: Sequence[str], *, most: int) -> float:
    """e to the mean loss of every token but each piece's first; of at most `most` tokens."""
    config = load_config(folder)
    dtype = choose_dtype("auto", config, _CPU)
    model = load_model(folder, config, max_model_len=LENGTH, dtype=dtype, device=_CPU)
    tokenizer = ChatTokenizer(folder)
    ids = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False)]
    pages = -(-LENGTH // PAGE_SIZE)
    cache = KVCache(config, 1 + pages, dtype=dtype, device=_CPU)
    plan = AttentionPlan.build([LENGTH], [LENGTH], [list(range(1, 1 + pages))], page_size=PAGE_SIZE)
    loss, count = 0.0, 0
    for start in range(0, min(most, len(ids)) - LENGTH + 1, LENGTH):
        piece = torch.tensor(ids[start : start + LENGTH])
        batch = Batch(piece, torch.arange(LENGTH), plan, None, (), Segments.group([-1] * LENGTH))
        chances = model.predict(model.forward(batch, cache), None).log_softmax(1)
        loss -= float(chances[:-1].gather(1, piece[1:, None]).double().sum())
        count += LENGTH - 1
    return math.exp(loss / count)
