"""A closed loop of requests on the engine: so many run at any time, each end starts the next."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.gpu.task import Row
from worker_engine.adapters.adapter import Adapter
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.engine import Engine
from worker_engine.protocol import GenerateRequest, SamplingParams


@dataclass(slots=True)
class Stream:
    """One request: when it was added and when each of its tokens came; seconds."""

    adapter: Adapter | None
    prompt_tokens: int
    added: float
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return (self.tokens[0] - self.added) * 1e3

    @property
    def gaps_ms(self) -> list[float]:
        return [(b - a) * 1e3 for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A step in which every running sequence made one token and none was prefilled.

    Attributes:
        contexts: tokens of each sequence whose keys and values it read.
    """

    seconds: float
    contexts: tuple[int, ...]
    adapter_bytes: int


@dataclass
class Load:
    """Runs `count` requests, `concurrency` at a time, with the adapters in turn.

    Attributes:
        streams: by request id, all that were added.
        decode_steps: see `DecodeStep`.
        seconds: from the first request's addition to the last token.
    """

    engine: Engine
    model: ModelConfig
    adapters: Sequence[Adapter]
    concurrency: int
    prompt_tokens: int
    out_tokens: int
    name: str
    streams: dict[str, Stream] = field(default_factory=dict)
    decode_steps: list[DecodeStep] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, count: int) -> None:
        """Raises RuntimeError when a request ends in an error or with too few tokens."""
        waiting = deque(range(count))
        running: set[str] = set()
        start = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < self.concurrency:
                running.add(self._add(waiting.popleft()))
            self._step(running)
        self.seconds = time.perf_counter() - start

    def _add(self, index: int) -> str:
        request_id = f"{self.name}-{index}"
        draw = random.Random(request_id)
        prompt = tuple(draw.randrange(2, self.model.vocab_size) for _ in range(self.prompt_tokens))
        adapter = self.adapters[index % len(self.adapters)] if self.adapters else None
        sampling = SamplingParams(self.out_tokens, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(request_id, prompt, sampling)
        self.streams[request_id] = Stream(adapter, len(prompt), time.perf_counter())
        self.engine.add_request(request, adapter)
        return request_id

    def _step(self, running: set[str]) -> None:
        decoding = all(self.streams[name].tokens for name in running)
        streams = [self.streams[name] for name in running]
        contexts = tuple(stream.prompt_tokens + len(stream.tokens) for stream in streams)
        begun = time.perf_counter()
        deltas = self.engine.step()
        now = time.perf_counter()
        made = 0
        for delta in deltas:
            if delta.error is not None:
                raise RuntimeError(f"{delta.request_id}: {delta.error}")
            self.streams[delta.request_id].tokens += [now] * len(delta.token_ids)
            made += len(delta.token_ids)
            if delta.finish_reason is not None:
                running.discard(delta.request_id)
                self._check(delta.request_id)
        if decoding and made == len(streams) == self.concurrency:
            active = {stream.adapter for stream in streams if stream.adapter is not None}
            nbytes = sum(adapter.nbytes for adapter in active)
            self.decode_steps.append(DecodeStep(now - begun, contexts, nbytes))

    def _check(self, request_id: str) -> None:
        made = len(self.streams[request_id].tokens)
        if made != self.out_tokens:
            raise RuntimeError(f"{request_id} ended with {made} tokens; expected {self.out_tokens}")

    def figures(self) -> Row:
        """TTFT, ITL, OTPS per request and throughput, of all requests."""
        streams = list(self.streams.values())
        gaps = sorted(gap for stream in streams for gap in stream.gaps_ms)
        ttft = sorted(stream.ttft_ms for stream in streams)
        # Tokens a second that one user sees: one over its own mean inter-token latency.
        otps = [1e3 / statistics.fmean(stream.gaps_ms) for stream in streams]
        return {
            "ttft_ms": _spread(ttft),
            "itl_ms": _spread(gaps),
            "otps": round(statistics.median(otps), 2),
            "out_tokens_per_s": round(sum(len(s.tokens) for s in streams) / self.seconds, 1),
            "prompt_tokens_per_s": round(sum(s.prompt_tokens for s in streams) / self.seconds, 1),
            "requests": len(streams),
            "load_seconds": round(self.seconds, 2),
        }


def _spread(ordered: Sequence[float]) -> dict[str, float]:
    last = len(ordered) - 1
    return {f"p{percent}": round(ordered[round(percent / 100 * last)], 3) for percent in (10, 50, 99)}
