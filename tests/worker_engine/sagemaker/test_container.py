"""`serve`: SageMaker configures a container by environment variables alone."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.conftest import free_port, stop
from tests.waiting import eventually
from tests.worker_process import worker_environment
from worker_engine.errors import ConfigError
from worker_engine.program import parse_config
from worker_engine.sagemaker.container import expand_arguments

TRUST = {"GRAFTWORK_TRUST_NETWORK": "yes"}


def test_without_serve_nothing_changes() -> None:
    flags = ["--model", "m", "--port", "1"]
    assert expand_arguments(flags, {"OPTION_MAX_MODEL_LEN": "128"}) == flags
    assert expand_arguments([], {}) == []


def test_the_environment_names_what_is_served() -> None:
    bare = parse_config(expand_arguments(["serve"], {}), TRUST)
    assert (str(bare.model), bare.served_model_name) == ("/opt/ml/model", "model")
    assert (bare.host, bare.port, bare.max_num_seqs) == ("0.0.0.0", 8080, 64)
    told = {
        "OPTION_MODEL_ID": "/opt/ml/model/tiny",
        "OPTION_SERVED_MODEL_NAME": "tiny",
        "OPTION_MAX_MODEL_LEN": "128",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "8",
        "OPTION_MAX_LORAS": "4",
        "OPTION_DTYPE": "fp32",
        "GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.5",
        "SAGEMAKER_BIND_TO_PORT": "7000",
    }
    config = parse_config(expand_arguments(["serve"], told), TRUST)
    assert (str(config.model), config.served_model_name) == ("/opt/ml/model/tiny", "tiny")
    assert (config.max_model_len, config.max_num_seqs, config.max_adapters_per_batch) == (128, 8, 4)
    assert (config.dtype, config.memory_gib, config.port) == ("float32", 0.5, 7000)


def test_weights_from_s3_lie_where_sagemaker_lays_them() -> None:
    config = parse_config(expand_arguments(["serve"], {"HF_MODEL_ID": "s3://bucket/weights/"}), TRUST)
    assert str(config.model) == "/opt/ml/model"


def test_a_hubs_model_is_refused_since_nobody_fetches_it() -> None:
    with pytest.raises(ConfigError, match="org/model is no folder"):
        expand_arguments(["serve"], {"HF_MODEL_ID": "org/model"})
    command = [sys.executable, "-m", "worker_engine", "serve"]
    done = subprocess.run(
        command,
        env=worker_environment(from_cold=True) | {"HF_MODEL_ID": "org/model"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "ModelDataSource" in done.stderr) == (2, True), done.stderr


def test_empty_variables_say_nothing_and_case_does_not_matter() -> None:
    told = {"OPTION_MAX_MODEL_LEN": "", "OPTION_SERVED_MODEL_NAME": "", "OPTION_DTYPE": "BF16"}
    config = parse_config(expand_arguments(["serve"], told), TRUST)
    assert (config.max_model_len, config.served_model_name, config.dtype) == (0, "model", "bfloat16")


def test_flags_win_over_own_variables_and_those_over_lmis() -> None:
    told = {"OPTION_MAX_ROLLING_BATCH_SIZE": "8", "GRAFTWORK_WORKER_FLAG_MAX_NUM_SEQS": "16"}
    assert parse_config(expand_arguments(["serve"], told), TRUST).max_num_seqs == 16
    assert parse_config(expand_arguments(["serve", "--max-num-seqs", "32"], told), TRUST).max_num_seqs == 32


def test_settings_that_it_does_not_have_are_refused_by_name() -> None:
    told = {
        "OPTION_QUANTIZE": "awq",
        "OPTION_TENSOR_PARALLEL_DEGREE": "4",
        "OPTION_DTYPE": "fp16",
        "OPTION_ENABLE_LORA": "true",
        "OPTION_ROLLING_BATCH": "vllm",
        "OPTION_MAX_LORA_RANK": "16",
        "OPTION_HF_TOKEN": "hf_secret",
    }
    with pytest.raises(ConfigError) as caught:
        expand_arguments(["serve"], told)
    text = str(caught.value)
    assert "OPTION_DTYPE: set auto, bf16 or fp32; OPTION_HF_TOKEN: unset it; OPTION_MAX_LORA_RANK" in text
    assert "OPTION_QUANTIZE" in text
    assert "OPTION_TENSOR_PARALLEL_DEGREE: set 1" in text
    assert "OPTION_ENABLE_LORA" not in text
    assert "hf_secret" not in text
    expand_arguments(["serve"], {"OPTION_TENSOR_PARALLEL_DEGREE": "1", "OPTION_DTYPE": "bf16"})


def test_vllms_speculative_configuration_becomes_flags() -> None:
    told = {"OPTION_SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 3}'}
    config = parse_config(expand_arguments(["serve"], told), TRUST)
    assert (config.speculation, config.speculation_tokens) == ("ngram", 3)
    told = {"OPTION_SPECULATIVE_CONFIG": '{"model": "/draft", "num_speculative_tokens": 5}'}
    config = parse_config(expand_arguments(["serve"], told), TRUST)
    assert (config.speculation, str(config.draft_model), config.speculation_tokens) == ("draft", "/draft", 5)


@pytest.mark.parametrize(
    "text", ["ngram", "[]", '{"method": "eagle3"}', '{"method": "ngram", "num_speculative_tokens": "4"}']
)
def test_a_speculative_configuration_that_is_not_served_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="OPTION_SPECULATIVE_CONFIG"):
        expand_arguments(["serve"], {"OPTION_SPECULATIVE_CONFIG": text})


@pytest.mark.costly("may start the fork server, and starts a worker")
def test_a_container_serves_as_it_is_told(tiny_model: Path, tmp_path: Path) -> None:
    port = free_port()
    told = {
        "OPTION_MODEL_ID": str(tiny_model),
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "OPTION_MAX_MODEL_LEN": "32",
        "GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.01",
        "GRAFTWORK_WORKER_FLAG_HOST": "127.0.0.1",
        "GRAFTWORK_WORKER_FLAG_ADAPTER_CACHE_DIR": str(tmp_path / "cache"),
    }
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "worker_engine", "serve"]
        process = subprocess.Popen(command, env=worker_environment() | told | TRUST, stdout=log, stderr=log)

    def call(method: str, path: str, body: object = None) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def answers() -> bool:
        with suppress(OSError):
            return call("GET", "/ping")[0] == 200
        return False

    try:
        eventually(lambda: process.poll() is not None or answers())
        body = {"inputs": "hello", "parameters": {"max_new_tokens": 4, "ignore_eos_token": True}}
        status, answer = call("POST", "/invocations", body)
        assert status == 200, (tmp_path / "log").read_text() + answer
        assert "generated_text" in json.loads(answer)
        status, refusal = call("POST", "/invocations", body | {"inputs": "x" * 40})
        assert (status, "32" in refusal) == (424, True)
    finally:
        stop(process)
