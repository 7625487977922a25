"""The table of images, LMI's options, and the environment that a container gets."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import fields
from typing import Any

import boto3
import pytest

from controlplane.deployments.containers.environment import container_environment
from controlplane.deployments.containers.images import ACCOUNTS, IMAGES, Family, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.containers.pytorch import pytorch_files
from controlplane.deployments.containers.served_options import option_servers
from controlplane.deployments.containers.speculation import METHODS
from controlplane.deployments.containers.triton import triton_repository
from controlplane.deployments.containers.worker import worker_checkpoint_check, worker_flags
from controlplane.errors import InvalidInputError

NEW, OLD = IMAGES["lmi-0.38.0"], IMAGES["lmi-0.32.0"]
_SDK: dict[str, tuple[str, dict[str, str]]] = {
    "neuronx": ("djl-neuronx", {}),
    "tensorrtllm": ("djl-tensorrtllm", {}),
    "vllm-server": ("vllm-server", {}),
    Family.VLLM: ("vllm", {"instance_type": "ml.g5.2xlarge", "image_scope": "inference"}),
    Family.LMI: ("djl-lmi", {}),
    Family.TGI: ("huggingface-llm", {"instance_type": "ml.g5.2xlarge"}),
    Family.TRITON: ("sagemaker-tritonserver", {"instance_type": "ml.g5.2xlarge"}),
    Family.PYTORCH: ("pytorch", {"instance_type": "ml.g5.2xlarge", "image_scope": "inference"}),
}


def regions() -> set[str]:
    """Every public region of botocore's, and those of our table."""
    session, partitions = boto3.Session(), ("aws", "aws-cn", "aws-us-gov")
    return set(ACCOUNTS).union(*(session.get_available_regions("sagemaker", name) for name in partitions))


@pytest.mark.parametrize("name", IMAGES)
def test_addresses_are_the_sdks(name: str) -> None:
    """In every region, also where an image is missing."""
    if importlib.util.find_spec("sagemaker") is None:
        pytest.skip("the sagemaker SDK is not installed: pip install 'graftwork[aws]'")
    from sagemaker.core import image_uris  # type: ignore[import-not-found]  # an extra

    image = IMAGES[name]
    engine, _, version = name.rpartition("-")
    if engine == "vllm" and version != "0.28.0":
        pytest.skip("the SDK lists vLLM 0.28.0 alone; the others are from aws/deep-learning-containers")
    framework, more = _SDK.get(engine) or _SDK[image.family]
    for region in regions():
        if region in image.absent:
            with pytest.raises(ValueError, match=f"Unsupported region: {region}"):
                image_uris.retrieve(framework=framework, region=region, version=version, **more)
            continue
        told: str = image_uris.retrieve(framework=framework, region=region, version=version, **more)
        # The SDK leaves out how a tag ends for TGI's and PyTorch's newest builds.
        assert told.partition(":")[0] == image.uri(region).partition(":")[0]
        assert image.tag.startswith(told.partition(":")[2]) or told.endswith(image.tag)


def test_a_region_has_its_own_registry() -> None:
    assert NEW.uri("us-west-2") == (
        "763104351884.dkr.ecr.us-west-2.amazonaws.com/djl-inference:0.38.0-lmi29.0.0-cu130"
    )
    assert NEW.uri("eu-south-1").startswith("692866216735.dkr.ecr.eu-south-1.amazonaws.com/")
    assert NEW.uri("cn-north-1").startswith("727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/")


def test_any_image_may_be_named_with_its_family() -> None:
    own = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/graftwork-worker:1.2"
    image = Image.from_name(own, family="worker")
    assert (image.uri("us-east-1"), image.family, image.lora) == (own, Family.WORKER, True)
    with pytest.raises(InvalidInputError, match="family is required"):
        Image.from_name(own)
    with pytest.raises(InvalidInputError, match="is not an image"):
        Image.from_name("lmi-9")
    with pytest.raises(InvalidInputError, match="is of family lmi"):
        Image.from_name("lmi-0.38.0", family="tgi")


def env(values: dict[str, Any], image: Image = NEW) -> dict[str, str]:
    return LmiOptions.from_values(values, image).environment(image, accelerators=2)


def test_defaults_of_an_asynchronous_image() -> None:
    assert env({}) == {
        "OPTION_TENSOR_PARALLEL_DEGREE": "2",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "32",
        "OPTION_GPU_MEMORY_UTILIZATION": "0.9",
        "OPTION_DTYPE": "auto",
        "OPTION_ASYNC_MODE": "true",
        "OPTION_ROLLING_BATCH": "disable",
        "OPTION_ENTRYPOINT": "djl_python.lmi_vllm.vllm_async_service",
        "OPTION_ENABLE_LORA": "true",
        "OPTION_MAX_LORAS": "4",
        "OPTION_MAX_LORA_RANK": "16",
        "OPTION_MAX_CPU_LORAS": "16",
    }


def test_older_images_have_no_asynchronous_handler() -> None:
    older = env({}, OLD)
    assert older["OPTION_ROLLING_BATCH"] == "vllm"
    assert "OPTION_ENTRYPOINT" not in older
    assert env({"rolling_batch": "lmi-dist"}, OLD)["OPTION_ROLLING_BATCH"] == "lmi-dist"


def test_a_removed_option_goes_to_images_that_know_it_alone() -> None:
    assert env({"lora_extra_vocab_size": 256}, OLD)["OPTION_LORA_EXTRA_VOCAB_SIZE"] == "256"
    with pytest.raises(InvalidInputError, match=r"not supported by lmi-0\.38\.0"):
        env({"lora_extra_vocab_size": 256})


def test_pre_quantized_weights_need_no_option() -> None:
    assert "OPTION_QUANTIZE" not in env({})
    assert env({"quantize": "fp8"})["OPTION_QUANTIZE"] == "fp8"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"max_lora_rank": 24}, "max_lora_rank"),
        ({"max_loras": 0}, "max_loras"),
        ({"max_loras": 8, "max_cpu_loras": 4}, "max_cpu_loras"),
        ({"max_loras": True}, "max_loras"),
        ({"max_loras": "4"}, "max_loras"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"dtype": "int2"}, "dtype"),
        ({"tensor_paralel": 2}, "tensor_paralel"),
        ({"enable_lora": 1}, "enable_lora"),
    ],
)
def test_a_wrong_option_is_named(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        LmiOptions.from_values(values, NEW)
    assert caught.value.field == f"options.{field}"


def test_images_without_adapters_refuse_them() -> None:
    with pytest.raises(InvalidInputError, match="is not supported by"):
        LmiOptions.from_values({}, IMAGES["tensorrtllm-0.33.0"])
    LmiOptions.from_values({"enable_lora": False}, IMAGES["tensorrtllm-0.33.0"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lmi-0.38.0", {"OPTION_MODEL_ID": "s3://b/m/"}),
        ("tgi-3.3.6", {"HF_MODEL_ID": "s3://b/m/", "SM_NUM_GPUS": "2"}),
        ("triton-26.05", {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "chat"}),
        ("pytorch-2.6.0", {"SAGEMAKER_PROGRAM": "inference.py", "SAGEMAKER_MODEL_SERVER_WORKERS": "1"}),
    ],
)
def test_each_family_is_told_in_its_words(name: str, expected: dict[str, str]) -> None:
    image = IMAGES[name]
    options = LmiOptions(enable_lora=image.lora)
    told = container_environment(image, options, model="s3://b/m/", served_name="llama", accelerators=2)
    assert told.items() >= expected.items()


def _worker(**changes: Any) -> dict[str, str]:
    image, options = Image("own/worker", Family.WORKER, lora=True), LmiOptions(**changes)
    return container_environment(image, options, model="s3://b/m/", served_name="llama", accelerators=1)


def test_the_bundled_worker_is_told_what_it_can_do() -> None:
    assert _worker() == {
        "OPTION_SERVED_MODEL_NAME": "llama",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "32",
        "GRAFTWORK_TRUST_NETWORK": "yes",
    }
    more = {"OPTION_DTYPE": "fp32", "OPTION_MAX_LORAS": "8", "OPTION_MAX_MODEL_LEN": "512"}
    assert _worker(dtype="fp32", max_loras=8, max_model_len=512).items() >= more.items()
    assert json.loads(_worker(speculation="ngram")["OPTION_SPECULATIVE_CONFIG"]) == NGRAM


NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"speculation": "ngram"}, NGRAM),
        (
            {"speculation": "draft", "draft_model": "s3://b/draft", "speculation_tokens": 6},
            {
                "method": "draft_model",
                "model": "/opt/ml/additional-model-data-sources/draft_model",
                "num_speculative_tokens": 6,
            },
        ),
        (
            {"speculation": "draft", "draft_model": "hf://org/draft@v1"},
            {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 4, "revision": "v1"},
        ),
    ],
)
def test_speculation_is_vllms_configuration(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert json.loads(env(values)["OPTION_SPECULATIVE_CONFIG"]) == expected


@pytest.mark.parametrize(
    ("image", "values", "option", "says"),
    [
        (NEW, {"speculation": "draft"}, "draft_model", "is required"),
        (NEW, {"draft_model": "s3://b/draft"}, "draft_model", "valid only for them"),
        (NEW, {"speculation_tokens": 5}, "speculation_tokens", "set speculation too"),
        (NEW, {"speculation": "draft", "draft_model": "org/draft"}, "draft_model", "must be s3://"),
        (OLD, {"speculation": "ngram"}, "speculation", "lmi-0.34.0 or newer"),
        (
            IMAGES["lmi-0.35.0"],
            {"speculation": "draft", "draft_model": "hf://o/d"},
            "speculation",
            "lmi-0.36.0 or newer for draft",
        ),
        (
            Image("own/worker", Family.WORKER, lora=True),
            {"speculation": "draft", "draft_model": "hf://o/d"},
            "draft_model",
            "downloads no model",
        ),
    ],
)
def test_speculation_that_is_not_served_is_refused(
    image: Image, values: dict[str, Any], option: str, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        LmiOptions.from_values(values, image)
    assert caught.value.field == f"options.{option}"


@pytest.mark.parametrize(
    ("tag", "async_mode", "extra_vocab", "rolling_batches"),
    [
        ("0.27.0-deepspeed0.12.6-cu121", False, True, ("vllm", "lmi-dist", "disable")),
        ("0.30.0-lmi12.0.0-cu124", False, True, ("vllm", "lmi-dist", "disable")),
        ("0.33.0-lmi15.0.0-cu128", False, False, ("vllm", "disable")),
        ("0.33.0-tensorrtllm0.21.0-cu128", False, False, ("trtllm", "disable")),
        ("0.39.0-lmi30.0.0-cu130", True, False, ("vllm", "disable")),
        ("latest", True, False, ("vllm", "disable")),
    ],
)
def test_an_address_is_judged_by_its_tag(
    tag: str, async_mode: bool, extra_vocab: bool, rolling_batches: tuple[str, ...]
) -> None:
    image = Image.from_name(f"1.dkr.ecr.us-east-1.amazonaws.com/djl-inference:{tag}", family="lmi")
    assert (image.async_mode, image.extra_vocab) == (async_mode, extra_vocab)
    assert image.rolling_batches == rolling_batches
    base = {} if image.lora else {"enable_lora": False}
    told = env(base, image)
    assert told["OPTION_ROLLING_BATCH"] == ("disable" if async_mode else rolling_batches[0])
    assert ("OPTION_ENTRYPOINT" in told) == async_mode
    with pytest.raises(InvalidInputError, match="is not supported by") as caught:
        env(base | {"rolling_batch": "lmi-dist" if "lmi-dist" not in rolling_batches else "trtllm"}, image)
    assert caught.value.field == "options.rolling_batch"


WORKER = Image("own/worker", Family.WORKER, lora=True)
TRITON = Image.from_name("own/tritonserver:26.05-vllm-python-py3", family="triton")


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"quantize": "awq"}, "use a quantized variant"),
        ({"dtype": "fp16"}, "set auto, bf16 or fp32"),
        ({"tensor_parallel": 2}, "one GPU"),
        ({"enable_lora": False}, "always serves adapters"),
        ({"max_lora_rank": 64}, "every rank"),
        ({"max_cpu_loras": 64}, "ADAPTER_CACHE_GIB"),
        ({"gpu_memory_utilization": 0.5}, "MEMORY_GIB"),
        ({"trust_remote_code": True}, "omit it"),
        ({"fully_sharded_loras": True}, "omit it"),
        ({"rolling_batch": "trtllm"}, "omit it"),
    ],
)
def test_options_without_effect_in_the_bundled_worker_are_refused(
    values: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(InvalidInputError, match=remedy) as caught:
        LmiOptions.from_values(values, WORKER)
    assert caught.value.field == f"options.{next(iter(values))}"


def test_the_bundled_worker_gets_its_options_as_flags() -> None:
    values = {
        "max_rolling_batch_size": 8,
        "max_model_len": 512,
        "max_loras": 8,
        "dtype": "bf16",
        "speculation": "ngram",
        "tensor_parallel": 1,
        "rolling_batch": "vllm",
    }
    flags = worker_flags(LmiOptions.from_values(values, WORKER))
    assert dict(zip(flags[::2], flags[1::2], strict=True)) == {
        "--max-num-seqs": "8",
        "--max-model-len": "512",
        "--max-adapters-per-batch": "8",
        "--dtype": "bfloat16",
        "--speculation": "ngram",
        "--speculation-tokens": "4",
    }
    assert worker_flags(LmiOptions.from_values({}, WORKER)) == ["--max-num-seqs", "32"]


OTHERS: dict[str, Any] = {
    "enable_lora": False,
    "tensor_parallel": 4,
    "max_rolling_batch_size": 8,
    "max_model_len": 512,
    "max_loras": 8,
    "max_lora_rank": 64,
    "max_cpu_loras": 64,
    "fully_sharded_loras": True,
    "lora_extra_vocab_size": 256,
    "dtype": "bf16",
    "quantize": "awq",
    "rolling_batch": "lmi-dist",
    "gpu_memory_utilization": 0.5,
    "trust_remote_code": True,
    "prefix_caching": False,
    "speculation": "ngram",
    "speculation_tokens": 6,
    "draft_model": "s3://b/draft",
    "accept_eula": True,
}
"""A value besides the default for every option."""


@pytest.mark.parametrize("image", [*(image for image in IMAGES.values() if not image.problem), WORKER])
@pytest.mark.parametrize("option", [item.name for item in fields(LmiOptions)])
def test_every_option_changes_the_container_or_is_refused_by_name(image: Image, option: str) -> None:
    base = {} if image.lora else {"enable_lora": False}

    methods = METHODS[1:] if image is WORKER else image.speculation
    needs = {"speculation_tokens": "ngram", "draft_model": "draft"}
    with_it = {"speculation": method} if (method := needs.get(option)) in methods else {}

    def configuration(values: dict[str, Any]) -> dict[str, str]:
        options = LmiOptions.from_values(base | values, image)
        told = container_environment(
            image, options, model="s3://b/m/", served_name="m", accelerators=1, adapters={"a": "/a"}
        )
        written = {Family.TRITON: triton_repository, Family.PYTORCH: pytorch_files}.get(image.family)
        if written is not None:
            adapters = {"a": "/a"} if options.enable_lora else {}
            told |= written(options, model="/w", revision="", accelerators=1, adapters=adapters)
        return told | dict.fromkeys(worker_flags(options), "") if image is WORKER else told

    if option == "enable_lora" and not image.lora:
        return  # as these images are configured anyway
    changed: dict[str, str] | None = None
    refused = ""
    try:
        changed = configuration({**with_it, option: OTHERS[option]})
    except InvalidInputError as error:
        refused = error.field or "?"
    assert changed != configuration({}), f"{option} has no effect in {image.name}"
    assert refused == ("" if changed else f"options.{option}")


def test_the_bundled_worker_needs_files_at_sagemaker() -> None:
    with pytest.raises(InvalidInputError, match="lays no files") as caught:
        worker_checkpoint_check("hf://org/model@main")
    assert caught.value.field == "image"
    worker_checkpoint_check("s3://b/m/")


def test_an_option_names_the_servers_that_have_it() -> None:
    assert option_servers("speculation") == ("LMI", "TGI", "vLLM", "Graftwork worker")
    assert option_servers("trust_remote_code") == ("LMI", "TGI", "Triton", "PyTorch", "vLLM")
    assert option_servers("enable_lora") == ("LMI", "TGI", "Triton", "PyTorch", "vLLM")
    assert all(option_servers(item.name) for item in fields(LmiOptions))
