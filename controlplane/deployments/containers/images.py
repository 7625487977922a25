"""AWS's inference images, as of November 2026, and other images by their address.

`tests/controlplane/deployments/test_images.py` compares the table with the `sagemaker` SDK's image_uris
if the extra `aws` is installed. Document 002 lists the versions that SageMaker caches on its instances.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from controlplane.errors import InvalidInputError

DEFAULT_ACCOUNT: Final = "763104351884"
ACCOUNTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "af-south-1": "626614931356",
        "ap-east-1": "871362719292",
        "ap-east-2": "975050140332",
        "ap-northeast-3": "364406365360",
        "ap-south-2": "772153158452",
        "ap-southeast-3": "907027046896",
        "ap-southeast-4": "457447274322",
        "ap-southeast-5": "550225433462",
        "ap-southeast-6": "633930458069",
        "ap-southeast-7": "590183813437",
        "ca-west-1": "204538143572",
        "cn-north-1": "727897471807",
        "cn-northwest-1": "727897471807",
        "eu-central-2": "380420809688",
        "eu-south-1": "692866216735",
        "eu-south-2": "503227376785",
        "eusc-de-east-1": "204133271717",
        "il-central-1": "780543022126",
        "me-central-1": "914824155844",
        "me-south-1": "217643126080",
        "mx-central-1": "637423239942",
        "us-gov-east-1": "446045086412",
        "us-gov-west-1": "442386744353",
    }
)
"""AWS account whose registry serves a region, if it is not DEFAULT_ACCOUNT."""
_SOVEREIGN: Final = frozenset({"eusc-de-east-1"})
_OTHER_PARTITIONS: Final = _SOVEREIGN | {"cn-north-1", "cn-northwest-1", "us-gov-east-1", "us-gov-west-1"}
_NOT_24_09: Final = _SOVEREIGN | {
    "ap-east-2",
    "ap-south-2",
    "ap-southeast-4",
    "ap-southeast-5",
    "ap-southeast-6",
    "ap-southeast-7",
    "eu-central-2",
    "eu-south-2",
    "me-central-1",
    "mx-central-1",
    "us-gov-east-1",
    "us-gov-west-1",
}
_SUFFIXES: Final = {"cn-": "amazonaws.com.cn", "eusc-": "amazonaws.eu"}
_URI: Final = re.compile(
    r"[a-z0-9][a-z0-9.:-]*(/[a-z0-9._-]+)+(:[A-Za-z0-9._-]{1,128})?(@sha256:[0-9a-f]{64})?"
)


_DJL_TAG: Final = re.compile(r"(?:^|:)(\d+)\.(\d+)\.\d+-(lmi|deepspeed|tensorrtllm|neuronx)")
"""Tags of djl-inference, such as 0.38.0-lmi29.0.0-cu130, also in another registry."""
_TRITON_TAG: Final = re.compile(r":(\d\d)\.(\d\d)-(.*)$")
"""Tags of NVIDIA's tritonserver, such as 26.05-vllm-python-py3, and of AWS's sagemaker-tritonserver."""
_GENERATE_FROM: Final = (25, 3)
"""Its SageMaker endpoint has the generate extension, without which no decoupled model can be called."""
_TRITON_REMEDY: Final = (
    "copy NVIDIA's tritonserver:26.05-vllm-python-py3 into your registry and give its address with "
    "image_family triton, or choose an lmi image"
)
_PYTORCH_TAG: Final = re.compile(r":(\d+)\.(\d+)\.\d+-")
"""Tags of AWS's pytorch-inference, such as 2.6.0-gpu-py312."""
_TRANSFORMERS_FROM: Final = (2, 6)
"""Oldest PyTorch of the transformers release that its handler is tested with."""
_VLLM_TAG: Final = re.compile(r":(\d+\.\d+\.\d+)-gpu-")
"""Tags of AWS's vllm for SageMaker, such as 0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker, in any registry."""
_VLLM_SERVER_TAG: Final = re.compile(r":server-sagemaker-cuda-v(\d+(?:\.\d+)?)")
"""Tags of its second line of images, which have a version of their own."""
_VLLM_OF_SERVER: Final = MappingProxyType(
    {
        "1": "0.19.1",
        "2.0": "0.22.1",
        "2.1": "0.24.0",
        "2.2": "0.26.0",
        "2.3": "0.27.0",
        "2.4": "0.27.1",
        "2.5": "0.30.0",
        "2.6": "0.30.0",
    }
)
"""Version of vLLM by that of the image, from docs/src/data of aws/deep-learning-containers."""
_CUDA_13_AMI: Final = "al2023-ami-sagemaker-inference-gpu-4-1"
"""Host image with the driver for CUDA 13, 580. SageMaker's default ones have 470 and 535, by instance type,
and it chooses no other for an image (its guide, "inference-gpu-drivers")."""
_NEWEST: Final = (0, 38)
_ASYNC_FROM: Final = (0, 34)
_DRAFT_MODEL_FROM: Final = (0, 36)
"""Its vLLM has draft models in the engine V1, the only one since LMI 15."""
_EXTRA_VOCAB_UNTIL: Final = (0, 32)
_LMI_DIST_UNTIL: Final = (0, 32)
_VLLM_OF_LMI: Final[Mapping[tuple[int, int], str]] = MappingProxyType({(0, 34): "0.10.2", (0, 35): "0.11.1"})
"""Version of vLLM by that of DJL Serving, from its release notes for LMI 16 and 17. Of LMI 18 and newer there
are several images for one version of DJL Serving, with different versions of vLLM."""


class _Engine(StrEnum):
    """Engines of LMI's images, as their tags name them."""

    LMI = "lmi"
    DEEPSPEED = "deepspeed"
    TENSORRT_LLM = "tensorrtllm"
    NEURON = "neuronx"


class Family(StrEnum):
    """Serving stack of an image; it decides how the image is configured and called."""

    LMI = "lmi"
    TGI = "tgi"
    TRITON = "triton"
    PYTORCH = "pytorch"
    VLLM = "vllm"
    WORKER = "worker"


FORMS: Final = frozenset({Family.TGI, Family.TRITON, Family.PYTORCH})
"""Families with a form of requests of their own, which load adapters only at their start."""
DISTINCT: Final = FORMS | {Family.VLLM}
"""Families whose requests no other family reads alike."""


@dataclass(frozen=True, slots=True)
class Image:
    """One container image.

    Attributes:
        name: `<family>-<version>` for an image of our table, otherwise the full address.
        lora: it can serve adapters.
        absent: regions whose registry does not have it.
    """

    name: str
    family: Family
    repository: str = ""
    tag: str = ""
    lora: bool = False
    absent: frozenset[str] = frozenset()

    @property
    def async_mode(self) -> bool:
        """True if it has LMI's asynchronous vLLM handler."""
        is_lmi = self.family is Family.LMI and self._engine is _Engine.LMI
        return is_lmi and self._version >= _ASYNC_FROM

    @property
    def extra_vocab(self) -> bool:
        """True if it accepts OPTION_LORA_EXTRA_VOCAB_SIZE."""
        return self.family is Family.LMI and self._version <= _EXTRA_VOCAB_UNTIL

    @property
    def rolling_batches(self) -> tuple[str, ...]:
        """Values of OPTION_ROLLING_BATCH with which it serves a model; the first one is its default."""
        match self._engine:
            case _Engine.TENSORRT_LLM:
                return ("trtllm", "disable")
            case _Engine.NEURON:
                return ("auto", "disable")
        return ("vllm", "lmi-dist", "disable") if self._version <= _LMI_DIST_UNTIL else ("vllm", "disable")

    @property
    def speculation(self) -> tuple[str, ...]:
        """Methods of speculative decoding that vLLM's speculative configuration selects."""
        if self.family is Family.VLLM:
            return ("ngram", "draft")
        if not self.async_mode:
            return ()
        return ("ngram", "draft") if self._version >= _DRAFT_MODEL_FROM else ("ngram",)

    @property
    def neuron(self) -> bool:
        """True if it runs on AWS Inferentia and Trainium, whose graphs have fixed shapes."""
        return self.family is Family.LMI and self._engine is _Engine.NEURON

    @property
    def tensorrt_llm(self) -> bool:
        """True if it serves TensorRT-LLM's engines, which are built for one kind of GPU and fixed shapes."""
        return self.family is Family.LMI and self._engine is _Engine.TENSORRT_LLM

    @property
    def engine_version(self) -> tuple[str, str]:
        """Name and version of its engine, by `contracts.capabilities.engines`; "" for what is not known.

        LMI's release notes state the version of vLLM; an image of vLLM has it in its tag.
        """
        match self.family:
            case Family.VLLM:
                return "vllm", self._vllm_version
            case Family.WORKER:
                return "worker", ""
            case Family.TGI:
                return "tgi", ""
            case Family.PYTORCH:
                return "transformers", ""
            case Family.LMI if self.tensorrt_llm:
                return "tensorrt-llm", ""
            case Family.LMI if self.neuron:
                return "neuron", ""
            case Family.LMI if self._engine is _Engine.LMI:
                found = _DJL_TAG.search(self.tag or self.name)
                return "vllm", _VLLM_OF_LMI.get((int(found[1]), int(found[2])), "") if found else ""
        return "", ""

    @property
    def problem(self) -> str:
        """Why the image serves no language model, and what to do; "" if it does or its tag does not say."""
        found = _PYTORCH_TAG.search(self._colon_tag)
        if self.family is Family.PYTORCH and found and (int(found[1]), int(found[2])) < _TRANSFORMERS_FROM:
            return f"{self.name} has a PyTorch older than 2.6, which transformers needs: choose pytorch-2.6.0"
        tag = _TRITON_TAG.search(f":{self.tag}" if self.tag else self.name)
        if self.family is not Family.TRITON or tag is None:
            return ""
        if "vllm" not in tag[3]:
            return f"{self.name} serves no language model: it has no vLLM backend: {_TRITON_REMEDY}"
        if (int(tag[1]), int(tag[2])) < _GENERATE_FROM:
            return f"{self.name} has no generate extension on SageMaker, as from 25.03 on: {_TRITON_REMEDY}"
        return ""

    @property
    def reads_routes(self) -> bool:
        """True if its /invocations takes a route of vLLM's from the custom attributes."""
        return self.family is Family.VLLM and _VLLM_SERVER_TAG.search(self._colon_tag) is not None

    @property
    def ami_version(self) -> str:
        """InferenceAmiVersion that its CUDA needs on instances with GPUs; "" for SageMaker's default.

        AWS demands one for images with CUDA 13: vLLM's, LMI's, and copies of them in other registries.
        """
        is_new = "-cu13" in self._colon_tag or ":server-sagemaker-cuda-v2" in self._colon_tag
        return _CUDA_13_AMI if is_new and self.family in (Family.VLLM, Family.LMI) else ""

    @property
    def _colon_tag(self) -> str:
        return f":{self.tag}" if self.tag else self.name

    @property
    def _vllm_version(self) -> str:
        if found := _VLLM_SERVER_TAG.search(self._colon_tag):
            return _VLLM_OF_SERVER.get(found[1], "")
        found = _VLLM_TAG.search(self._colon_tag)
        return found[1] if found else ""

    @property
    def _version(self) -> tuple[int, int]:
        """Version of DJL Serving by the image's tag; that of the newest images if the tag does not say."""
        found = _DJL_TAG.search(self.tag or self.name)
        return (int(found[1]), int(found[2])) if found else _NEWEST

    @property
    def _engine(self) -> _Engine:
        found = _DJL_TAG.search(self.tag or self.name)
        return _Engine(found[3]) if found else _Engine.LMI

    def uri(self, region: str) -> str:
        """Return the address from which `region` pulls the image."""
        if not self.repository:
            return self.name
        account = ACCOUNTS.get(region, DEFAULT_ACCOUNT)
        suffix = next((end for head, end in _SUFFIXES.items() if region.startswith(head)), "amazonaws.com")
        return f"{account}.dkr.ecr.{region}.{suffix}/{self.repository}:{self.tag}"

    @classmethod
    def from_name(cls, name: str, *, family: str = "") -> Self:
        """Return an image of the table, or an image by its address, which requires `family`.

        Raises:
            InvalidInputError: `name` is neither, or the family is missing or unknown.
        """
        if (known := IMAGES.get(name)) is not None:
            if family and family != known.family:
                text = f"{name} is of family {known.family}: omit image_family"
                raise InvalidInputError(text, field="image_family")
            return cls(**{item: getattr(known, item) for item in cls.__dataclass_fields__})
        if _URI.fullmatch(name) is None or "/" not in name:
            raise InvalidInputError(
                f"{name!r} is not an image: use a registry address, or one of {', '.join(IMAGES)}",
                field="image",
            )
        if family not in tuple(Family):
            raise InvalidInputError(
                f"image_family is required for image {name}: one of {', '.join(Family)}", field="image_family"
            )
        image = cls(name, Family(family), lora=True)
        return replace(image, lora=False) if image.neuron or image.tensorrt_llm else image


def _lmi(tag: str) -> Image:
    return Image(f"lmi-{tag.partition('-')[0]}", Family.LMI, "djl-inference", tag, lora=True)


def _vllm(version: str, system: str) -> Image:
    tag = f"{version}-gpu-py312-cu130-{system}-sagemaker"
    return Image(f"vllm-{version}", Family.VLLM, "vllm", tag, lora=True)


def _vllm_server(version: str) -> Image:
    name, tag = f"vllm-server-{version}", f"server-sagemaker-cuda-v{version}"
    return Image(name, Family.VLLM, "vllm", tag, lora=True, absent=_OTHER_PARTITIONS - _SOVEREIGN)


def _tgi(version: str, tag: str) -> Image:
    return Image(f"tgi-{version}", Family.TGI, "huggingface-pytorch-tgi-inference", tag, lora=True)


def _engine(name: str, tag: str) -> Image:
    """Return an image of LMI with another engine than vLLM, which serves no adapters."""
    return Image(name, Family.LMI, "djl-inference", tag)


_TRITON, _PYTORCH = "sagemaker-tritonserver", "pytorch-inference"
IMAGES: Final[Mapping[str, Image]] = MappingProxyType(
    {
        image.name: image
        for image in (
            _lmi("0.38.0-lmi29.0.0-cu130"),
            _lmi("0.36.0-lmi27.0.0-cu130"),
            _lmi("0.35.0-lmi17.0.0-cu128"),
            _lmi("0.34.0-lmi16.0.0-cu128"),
            _lmi("0.33.0-lmi15.0.0-cu128"),
            _lmi("0.32.0-lmi14.0.0-cu126"),
            _lmi("0.31.0-lmi13.0.0-cu124"),
            _lmi("0.30.0-lmi12.0.0-cu124"),
            _vllm("0.31.0", "ubuntu24.04"),
            _vllm("0.30.0", "ubuntu24.04"),
            _vllm("0.29.0", "ubuntu24.04"),
            _vllm("0.28.0", "ubuntu24.04"),
            _vllm("0.27.1", "ubuntu22.04"),
            _vllm("0.26.0", "ubuntu22.04"),
            _vllm("0.25.1", "ubuntu22.04"),
            _vllm("0.24.0", "ubuntu22.04"),
            _vllm("0.23.0", "ubuntu22.04"),
            _vllm_server("2.6"),
            _vllm_server("2.5"),
            _vllm_server("2.4"),
            _vllm_server("2.3"),
            _vllm_server("2.2"),
            _engine("tensorrtllm-0.33.0", "0.33.0-tensorrtllm0.21.0-cu128"),
            _engine("neuronx-0.30.0", "0.30.0-neuronx-sdk2.20.1"),
            _tgi("3.3.6", "2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"),
            _tgi("3.3.4", "2.7.0-tgi3.3.4-gpu-py311-cu124-ubuntu22.04"),
            _tgi("2.4.0", "2.4.0-tgi2.4.0-gpu-py311-cu124-ubuntu22.04-v2.2"),
            Image("triton-26.05", Family.TRITON, _TRITON, "26.05-py3", absent=_OTHER_PARTITIONS),
            Image("triton-25.09", Family.TRITON, _TRITON, "25.09-py3", absent=_OTHER_PARTITIONS),
            Image("triton-24.09", Family.TRITON, _TRITON, "24.09-py3", absent=_NOT_24_09),
            Image("pytorch-2.6.0", Family.PYTORCH, _PYTORCH, "2.6.0-gpu-py312", lora=True, absent=_SOVEREIGN),
            Image("pytorch-2.5.1", Family.PYTORCH, _PYTORCH, "2.5.1-gpu-py311", lora=True, absent=_SOVEREIGN),
        )
    }
)
"""The images by name, newest first."""
DEFAULT_IMAGE: Final = "lmi-0.38.0"
TENSORRT_LLM_IMAGE: Final = "tensorrtllm-0.33.0"
NEURON_IMAGE: Final = "neuronx-0.30.0"
BUNDLED_WORKER: Final = Image("worker", Family.WORKER, lora=True)
"""The bundled worker on a host, without a container."""
VLLM_SERVER: Final = Image("vllm", Family.VLLM, lora=True)
"""vLLM on a host, without a container."""
OTHER_SERVER: Final = Image("server", Family.LMI, lora=True)
"""A running server with vLLM's options, which others started."""
