"""The engine beside transformers + PEFT: the same mixed adapters in one process, without HTTP or tokenizing.

Both generate the same number of tokens from the same prompts with the same four adapters in turn, greedily
and past any end-of-sequence token, round by round in turn so that a busy machine is busy for both. The
engine stands as the worker configures it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.engine.in_process import InProcess
from benchmarks.figure import Figure, compared
from contracts.adapters.reference import ADAPTER_FILES
from worker_engine.protocol import GenerateRequest, Origin, SamplingParams

ADAPTERS: Final = Path(__file__).resolve().parents[2] / "demo" / "adapters"
STREAMS: Final = (1, 8, 32)
NEW_TOKENS: Final = 64
ROUNDS: Final = 3
"""The median round counts; one more before them warms up."""
QUESTION: Final = "Tell me about the sea and what lives in it, in a few sentences please."


@dataclass(frozen=True, slots=True)
class Measured:
    """One round: all tokens over all time, and the time until every stream had its first token."""

    tokens_per_s: float
    ttft_ms: float


def beside_peft(model: Path) -> Iterator[Figure]:
    """Yields tokens/s and TTFT at 1, 8 and 32 streams, each beside transformers + PEFT."""
    folders = sorted(path.parent for path in ADAPTERS.glob(f"*/{ADAPTER_FILES[1]}"))[:4]
    ours, peers = _Ours(model, folders), _Peers(model, folders)
    for streams in STREAMS:
        rounds = [(ours.round(streams), peers.round(streams)) for _ in range(ROUNDS + 1)][1:]
        mine, theirs = _median([pair[0] for pair in rounds]), _median([pair[1] for pair in rounds])
        note = f"beside transformers + PEFT, {len(folders)} adapters mixed, {NEW_TOKENS} new tokens, bf16"
        metric, speed = f"in_process_tokens_per_s_{streams}", theirs.tokens_per_s
        yield compared("engine", metric, mine.tokens_per_s, "token/s", baseline=speed, goal=1.5, note=note)
        metric, wait = f"in_process_ttft_ms_{streams}", theirs.ttft_ms
        yield compared(
            "engine", metric, mine.ttft_ms, "ms", baseline=wait, goal=1.0, less_is_better=True, note=note
        )


def _median(rounds: list[Measured]) -> Measured:
    return Measured(
        statistics.median(item.tokens_per_s for item in rounds),
        statistics.median(item.ttft_ms for item in rounds),
    )


class _Ours:
    def __init__(self, model: Path, folders: list[Path]) -> None:
        process = InProcess(model)
        self._engine, self._tokenizer = process.engine, process.tokenizer
        self._salts = itertools.count()
        self._adapters = [process.load(folder) for folder in folders]

    def round(self, streams: int) -> Measured:
        message = {"role": "user", "content": QUESTION}
        prompt = self._tokenizer.encode(self._tokenizer.render_chat([message]), add_special_tokens=False)
        sampling = SamplingParams(NEW_TOKENS, temperature=0.0, ignore_eos=True)
        for index in range(streams):
            adapter = self._adapters[index % len(self._adapters)]
            # A salt of its own: all prompts are the same, and none may be found computed.
            origin = Origin(cache_salt=f"{next(self._salts)}")
            request = GenerateRequest(str(index), tuple(prompt), sampling, origin=origin)
            self._engine.add_request(request, adapter)
        start = time.perf_counter()
        seen: Counter[str] = Counter()
        first = 0.0
        while not self._engine.idle:
            for delta in self._engine.step():
                seen[delta.request_id] += len(delta.token_ids)
            if not first and len(seen) == streams:
                first = time.perf_counter() - start
        took = time.perf_counter() - start
        if seen != Counter({str(index): NEW_TOKENS for index in range(streams)}):
            raise RuntimeError(f"the engine generated {dict(seen)}, not {NEW_TOKENS} tokens a stream")
        return Measured(streams * NEW_TOKENS / took, first * 1e3)


class _Peers:
    def __init__(self, path: Path, folders: list[Path]) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._names = [folder.name for folder in folders]
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        model: Any = PeftModel.from_pretrained(base, str(folders[0]), adapter_name=self._names[0])
        for folder in folders[1:]:
            model.load_adapter(str(folder), adapter_name=folder.name)
        self._model = model.eval()
        self._model.generation_config.eos_token_id = None

    def round(self, streams: int) -> Measured:
        prompt = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
        )
        batch = self._tokenizer([prompt] * streams, return_tensors="pt", add_special_tokens=False)
        names = [self._names[index % len(self._names)] for index in range(streams)]
        first = self._generate(batch, names, 1)
        return Measured(streams * NEW_TOKENS / self._generate(batch, names, NEW_TOKENS), first * 1e3)

    def _generate(self, batch: Any, names: list[str], count: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                **batch, adapter_names=names, max_new_tokens=count, do_sample=False, pad_token_id=0
            )
        took = time.perf_counter() - start
        if (made := output.shape[1] - batch["input_ids"].shape[1]) != count:
            raise RuntimeError(f"transformers generated {made} tokens, not {count}")
        return took
