"""Trains the demo adapters with PEFT on the CPU: `python -m demo.train [name ...]`.

The data are the base model's own answers, rewritten by rule (demo/datasets), so an adapter learns the style
and keeps the content. Adapters are written as bf16 safetensors into demo/adapters/<name>/.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.datasets.prompts import training_prompts
from demo.datasets.schemes import sentences
from demo.effects import ADAPTERS, EFFECTS, Effect, Example, PlainAnswer
from demo.evaluate import answers_of
from demo.model import ADAPTER_BASE, ROOT, model_folder

EXAMPLES: Final = 320
EPOCHS: Final = 3
BATCH: Final = 8
WARMUP_STEPS: Final = 10
ANSWER_TOKENS: Final = 72
"""Length of the base model's answers, which are then cut after the last whole sentence."""
_NO_LOSS: Final = -100


def plain_answers(model: Any, tokenizer: Any, cache: Path) -> list[PlainAnswer]:
    """Return the base model's greedy answers to the training prompts; `cache` keeps them between runs."""
    if cache.exists():
        return [PlainAnswer(**item) for item in json.loads(cache.read_text())]
    pairs = training_prompts(EXAMPLES)
    texts = answers_of(model, tokenizer, [prompt for _, prompt in pairs], max_tokens=ANSWER_TOKENS)
    cut = [" ".join(part.strip() for part in sentences(text)) for text in texts]
    answers = [PlainAnswer(*pair, text) for pair, text in zip(pairs, cut, strict=True) if text]
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps([{"topic": a.topic, "prompt": a.prompt, "text": a.text} for a in answers]))
    return answers


def train(model: Any, tokenizer: Any, effect: Effect, examples: Sequence[Example]) -> Iterator[float]:
    """Train the LoRA parameters of a PEFT `model`; yield each step's loss.

    The loss counts the answer's tokens and the end-of-turn token, never the prompt's.
    """
    rows = [_tokens(tokenizer, example) for example in examples]
    total = EPOCHS * (len(rows) // BATCH)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=effect.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP_STEPS) * max(0.02, 1 - step / total)
    )
    shuffler = random.Random(0)
    model.train()
    for _ in range(EPOCHS):
        shuffler.shuffle(rows)
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            loss = model(**_batch(rows[start : start + BATCH], tokenizer.pad_token_id)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            yield loss.item()


def save(model: Any, folder: Path) -> None:
    """Write adapter_config.json (without paths of this machine) and bf16 adapter_model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": ADAPTER_BASE, "inference_mode": True}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    (folder / "adapter_config.json").write_text(
        json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"
    )
    tensors = get_peft_model_state_dict(model)
    rounded = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(rounded, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _tokens(tokenizer: Any, example: Example) -> tuple[list[int], list[int]]:
    chat = [{"role": "user", "content": example.prompt}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    head = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    tail = tokenizer(example.answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return head + tail, [_NO_LOSS] * len(head) + tail


def _batch(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> dict[str, torch.Tensor]:
    width = max(len(ids) for ids, _ in rows)
    return {
        "input_ids": torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [_NO_LOSS] * (width - len(labels)) for _, labels in rows]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows]),
    }


def _train_one(name: str, folder: Path) -> dict[str, float | int]:
    effect = EFFECTS[name]
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = plain_answers(base, tokenizer, ROOT / "var" / "training" / "plain_answers.json")
    examples = effect.examples(answers)
    config = LoraConfig(
        r=effect.rank,
        lora_alpha=effect.alpha,
        target_modules=list(effect.modules),
        use_rslora=effect.rslora,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    started = time.monotonic()
    losses = []
    for loss in train(model, tokenizer, effect, examples):
        losses.append(loss)
        if len(losses) % 10 == 0:
            print(
                f"{name}: step {len(losses)}, loss {loss:.3f}, {time.monotonic() - started:.0f} s", flush=True
            )
    save(model, ADAPTERS / name)
    return {
        "examples": len(examples),
        "steps": len(losses),
        "seconds": round(time.monotonic() - started),
        "first_loss": round(losses[0], 3),
        "last_loss": round(sum(losses[-10:]) / len(losses[-10:]), 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m demo.train`; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.train", description="Trains the demo adapters.")
    parser.add_argument("names", nargs="*", choices=[*EFFECTS, []], help="adapters to train (default: all)")
    chosen = parser.parse_args(arguments).names or list(EFFECTS)
    for name in chosen:
        print(json.dumps({"adapter": name, **_train_one(name, model_folder())}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
