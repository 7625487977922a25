"""Scores the demo adapters and the base model on held-out prompts: `python -m demo.evaluate`.

By default it uses transformers and PEFT in float32. With `--gateway [var/demo.json]` it calls a running demo
instead, with the same prompts, greedily, through the whole product.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from demo.effects import ADAPTERS, EFFECTS, Check
from demo.model import ROOT, model_folder

BATCH: Final = 20
MAX_TOKENS: Final = 110

Answer = Callable[[str, Sequence[str]], list[str]]
"""Answers of one model, named by adapter or "" for the base, to prompts."""


def answers_of(model: Any, tokenizer: Any, prompts: Sequence[str], *, max_tokens: int) -> list[str]:
    """Return a transformers model's greedy answers to single-turn chats without a system prompt."""
    import torch

    tokenizer.padding_side = "left"
    model.eval()
    answers: list[str] = []
    for start in range(0, len(prompts), BATCH):
        chats = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
            for prompt in prompts[start : start + BATCH]
        ]
        inputs = tokenizer(chats, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        answers += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [answer.strip() for answer in answers]


def score(checks: Sequence[Check], answers: Sequence[str]) -> float:
    """Return the share of answers that pass their check, 0 to 1."""
    return sum(check.passes(answer) for check, answer in zip(checks, answers, strict=True)) / len(checks)


def with_peft(folder: Path) -> Answer:
    """Return the reference: answers by transformers and PEFT in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @functools.cache  # most effects ask the base the same prompts
    def answers(name: str, prompts: tuple[str, ...]) -> list[str]:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        if name:
            model = PeftModel.from_pretrained(model, ADAPTERS / name)
        return answers_of(model, tokenizer, prompts, max_tokens=MAX_TOKENS)

    return lambda name, prompts: answers(name, tuple(prompts))


def through_gateway(description: Path) -> Answer:
    """Return answers by a running demo; each adapter is called with the key of a tenant that owns it."""
    from openai import OpenAI

    demo = json.loads(description.read_text())

    def answer(name: str, prompts: Sequence[str]) -> list[str]:
        tenant = next(item for item in demo["tenants"] if not name or name in item["adapters"])
        client = OpenAI(base_url=demo["gateway"], api_key=tenant["api_key"])

        def reply(prompt: str) -> str:
            completion = client.chat.completions.create(
                model=name or tenant["base_model"],
                messages=[{"role": "user", "content": prompt}],
                temperature=0,
                max_tokens=MAX_TOKENS,
            )
            return (completion.choices[0].message.content or "").strip()

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(reply, prompts))

    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per adapter; return 1 if an adapter scores under 90% or the base model over 10%."""
    parser = argparse.ArgumentParser(prog="python -m demo.evaluate", description="Scores the demo adapters.")
    parser.add_argument("names", nargs="*", help="adapters to score (default: all)")
    parser.add_argument(
        "--gateway",
        type=Path,
        nargs="?",
        const=ROOT / "var" / "demo.json",
        help="use the running demo instead of transformers",
    )
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the first N answers")
    options = parser.parse_args(arguments)
    answer = through_gateway(options.gateway) if options.gateway else with_peft(model_folder())
    print(f"{'adapter':16} {'prompts':>7} {'base':>6} {'adapter':>8}")
    good = True
    for name in options.names or list(EFFECTS):
        checks = EFFECTS[name].checks()
        prompts = [check.prompt for check in checks]
        answers = answer(name, prompts)
        base, tuned = score(checks, answer("", prompts)), score(checks, answers)
        good &= base <= 0.10 and tuned >= 0.90
        print(f"{name:16} {len(checks):7} {base:6.0%} {tuned:8.0%}", flush=True)
        for prompt, text in list(zip(prompts, answers, strict=True))[: options.show]:
            print(f"  > {prompt}\n{text}\n", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
