"""A checkpoint that writes a fixed text: each token leads to one next token, whatever stands before.

Its layers add nothing, so that the logits depend on the last token alone. The chat template is Qwen3's own
(`qwen3.jinja`, from Qwen/Qwen3-8B, Apache-2.0), and so are the tokens of its marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.worker_engine.tiny_model import TINY, Weights, family_config, shapes_of, write_checkpoint

TEMPLATE: Final = Path(__file__).with_name("qwen3.jinja")
THINK, END_THINK, IM_END = "<think>", "</think>", "<|im_end|>"
_SPECIAL: Final = ("<|im_start|>", IM_END)
_PLAIN: Final = (THINK, END_THINK, "<tool_call>", "</tool_call>")
_HIDDEN: Final = 272
_SCALE: Final = 4.0
"""Makes the next token's logit 66 and all others 0."""


def qwen_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer that has Qwen3's marks, and its token of two line feeds."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: index for index, char in enumerate([*alphabet, "\u010a\u010a"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("\u010a", "\u010a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in _PLAIN])
    return tokenizer


def write_scripted(folder: Path, steps: Sequence[Sequence[str]]) -> Path:
    """Write a checkpoint in which each text of `steps` leads to the next one of its list; return `folder`.

    The texts are single tokens. A token without a next one leads to the end of the message.
    """
    tokenizer = qwen_tokenizer()
    end = tokenizer.token_to_id(IM_END)
    config = family_config(
        "qwen3",
        **{
            **TINY,
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": _HIDDEN,
            "head_dim": 8,
            "num_hidden_layers": 1,
            "max_position_embeddings": 1024,
            "eos_token_id": end,
            "bos_token_id": None,
        },
    )
    following = np.full(tokenizer.get_vocab_size(), end)
    for texts in steps:
        ids = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids]
        following[ids[:-1]] = ids[1:]
    weights = _weights(config["vocab_size"], following, shapes_of(config))
    write_checkpoint(folder, config, weights)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text())
    return folder


def _weights(vocabulary: int, following: np.ndarray, shapes: dict[str, tuple[int, ...]]) -> Weights:
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name, value in weights.items():
        if name.endswith("norm.weight"):
            value[:] = 1.0
    weights["model.embed_tokens.weight"][:, :vocabulary] = np.eye(vocabulary, dtype=np.float32)
    for token, after in enumerate(following):
        weights["lm_head.weight"][after, token] = _SCALE
    return weights
