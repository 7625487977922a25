"""Check values that operators enter: a deployment's desired state, its scaling policy, and base URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from contracts.recipes.recipe import Quantization
from contracts.server_credentials import ServerCredentials
from controlplane.deployments.capabilities import RunningEngine, base_check
from controlplane.deployments.containers.images import (
    DEFAULT_IMAGE,
    DISTINCT,
    FORMS,
    IMAGES,
    OTHER_SERVER,
    Family,
    Image,
)
from controlplane.deployments.containers.options import LmiOptions, secret_variable_check
from controlplane.deployments.containers.vllm import vllm_environment_check
from controlplane.deployments.containers.worker import worker_checkpoint_check
from controlplane.deployments.endpoint_hosting import endpoint_hosting_check, endpoint_policy_check
from controlplane.deployments.local_hosting import local_hosting_check
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.deployments.scaling.selectors import policies_on_endpoint
from controlplane.deployments.sizing.compute import compute_of
from controlplane.deployments.sizing.devices import device_check
from controlplane.deployments.sizing.fallback_types import fallback_types_check
from controlplane.errors import ConflictError, InvalidInputError

Hosting = Deployment.Hosting
HOSTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    Target.Kind.SAGEMAKER: (
        Hosting.COMPONENTS,
        Hosting.PRELOADED,
        Hosting.FUSED,
        Hosting.ON_DEMAND,
        Hosting.ENDPOINT,
    ),
    Target.Kind.LOCAL: (Hosting.ON_DEMAND, Hosting.FUSED),
    Target.Kind.OPENAI_HTTP: (Hosting.API, Hosting.ON_DEMAND, Hosting.FUSED),
}
"""Hosting modes by kind of target; the first one is the default."""
_OF_ENDPOINT: Final = ("instance_type", "fallback_instance_types", "min_instances", "max_instances")
_OF_SAGEMAKER: Final = ("endpoint", "image", "compute", *_OF_ENDPOINT)
_OF_COPIES: Final = ("min_copies", "max_copies", "environment", "variant")
"""Fields of copies that we start; running servers have none of them."""
_ENV_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,200}")
REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]")
"""An AWS region's name."""
_HEADER_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[!-~](?:[ -~]{0,4094}[!-~])?")
_OUR_HEADERS: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "traceparent",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
    }
)
_IN_AFTER_OF_AWS, _OUT_AFTER_OF_AWS = 900, 30
_MOST_LOCAL: Final = 16
_SCALING_OF_ENDPOINT: Final = (
    "routing",
    "release",
    "release_cooldown_minutes",
    "metrics_seconds",
    "basic_metrics",
)
"""Fields that concern the endpoint, not one base model's copies."""
_CAPACITY: Final = frozenset({"max_rolling_batch_size", "max_loras", "max_cpu_loras", "max_lora_rank"})
"""Options that tell what a running server can hold and serve; placement and consolidation use them."""


def deployment_check(deployment: Deployment) -> None:
    """Validate the desired state and fill in derived fields, without saving them.

    Raises:
        InvalidInputError: a value is malformed, out of bounds, or not valid for this kind of target.
        ConflictError: the shared endpoint has other instances.
    """
    kind = deployment.target.kind
    if deployment.hosting not in HOSTINGS[kind]:
        listed = ", ".join(HOSTINGS[kind])
        raise InvalidInputError(
            f"hosting in a target of kind {kind} must be one of {listed}", field="hosting"
        )
    _check_adapter_scope(deployment)
    if not 1 <= deployment.max_copies <= 1000 or not 0 <= deployment.min_copies <= deployment.max_copies:
        raise InvalidInputError(
            "copies must satisfy 0 <= min_copies <= max_copies and 1 <= max_copies <= 1000",
            field="min_copies",
        )
    _check_environment(deployment.environment)
    _check_variant(deployment)
    if kind != Target.Kind.SAGEMAKER:
        base_check(deployment)
    if deployment.urls and kind != Target.Kind.OPENAI_HTTP:
        raise InvalidInputError("urls is valid only for targets of kind openai_http", field="urls")
    if not isinstance(deployment.urls, list) or len(deployment.urls) > 64:
        raise InvalidInputError("urls must have at most 64 entries, such as http://vllm:8000", field="urls")
    deployment.urls = [base_url(url, field="urls") for url in deployment.urls]
    if kind == Target.Kind.SAGEMAKER:
        _check_sagemaker(deployment)
        return
    _check_unset(deployment, _OF_SAGEMAKER, "is valid only for targets of kind sagemaker")
    if kind == Target.Kind.OPENAI_HTTP:
        _check_unset(deployment, ("image_family",), "has no effect on running servers")
        text = "has no effect on running servers: configure it where they are started"
        _check_unset(deployment, _OF_COPIES, text)
        _check_server_options(deployment.options)
        return
    local_hosting_check(deployment)


def _check_adapter_scope(deployment: Deployment) -> None:
    if deployment.adapter_scope not in Deployment.Scope.values:
        listed = ", ".join(Deployment.Scope.values)
        raise InvalidInputError(f"adapter_scope must be one of {listed}", field="adapter_scope")
    if deployment.adapter_scope != Deployment.Scope.ALL and deployment.hosting not in Deployment.PLACING:
        raise InvalidInputError(
            f"adapter_scope has no effect in hosting {deployment.hosting}, which places no adapters: omit it",
            field="adapter_scope",
        )


def _check_unset(deployment: Deployment, fields: Sequence[str], text: str) -> None:
    """Raise InvalidInputError if one of the fields differs from its default."""
    for field in fields:
        if getattr(deployment, field) != getattr(Deployment(), field):
            raise InvalidInputError(f"{field} {text}", field=field)


def _check_server_options(options: Mapping[str, Any]) -> None:
    """Check options of running servers: only those that describe their capacity have an effect."""
    if unused := sorted(set(options) - _CAPACITY):
        raise InvalidInputError(
            f"options.{unused[0]} has no effect on running servers: configure it where they are started; "
            f"options for them are {', '.join(sorted(_CAPACITY))}",
            field=f"options.{unused[0]}",
        )
    LmiOptions.from_values(options, OTHER_SERVER)


def _check_variant(deployment: Deployment) -> None:
    base = deployment.base_model
    known = list(base.variants.values_list("name", flat=True))
    if deployment.variant and deployment.variant not in known:
        listed = ", ".join(known) or "none"
        raise InvalidInputError(
            f"{base.name} has no such variant; existing variants: {listed}", field="variant"
        )
    engine = RunningEngine.of_deployment(deployment).engine
    three_bits = base.variants.filter(name=deployment.variant, quantization=Quantization.AWQ3_G128).exists()
    if three_bits and engine != "worker":
        raise InvalidInputError(
            f"variant {deployment.variant} has 3-bit weights, which only the bundled worker serves: choose a "
            "target or an image of the bundled worker, or a variant of awq_int4_g128",
            field="variant",
        )
    _check_merged(deployment)


def _check_merged(deployment: Deployment) -> None:
    """Set `merged_adapter`, and check that the deployment can serve a variant with a merged adapter."""
    rows = deployment.base_model.variants.filter(name=deployment.variant)
    merged = rows.values_list("merged_adapter", flat=True).first() or ""
    if deployment._state.adding:
        deployment.merged_adapter = merged
    if merged != deployment.merged_adapter:
        theirs = f"only {merged}, which it has merged in" if merged else "adapters of every tenant"
        ours = f"only {deployment.merged_adapter}" if deployment.merged_adapter else "the base model"
        raise InvalidInputError(
            f"variant {deployment.variant or 'of the base itself'} serves {theirs}, and {deployment.name}"
            f" serves {ours}: create a deployment with hosting fused for a merged copy",
            field="variant",
        )
    if not merged:
        if deployment.hosting == Hosting.FUSED and deployment.target.kind == Target.Kind.LOCAL:
            raise InvalidInputError(
                "hosting fused on a host requires a variant with a merged adapter: create a merged copy,"
                " or choose on_demand",
                field="hosting",
            )
        return
    if deployment.hosting != Hosting.FUSED:
        raise InvalidInputError(
            f"variant {deployment.variant} has {merged} merged in and serves that adapter alone: choose"
            " hosting fused",
            field="hosting",
        )
    if deployment.min_copies == 0:
        raise InvalidInputError(
            "min_copies must be at least 1 for a merged copy: requests wake copies of the base model only",
            field="min_copies",
        )


def _check_sagemaker(deployment: Deployment) -> None:
    image = Image.from_name(deployment.image or DEFAULT_IMAGE, family=deployment.image_family)
    deployment.image, deployment.image_family = image.name, image.family.value
    if (region := deployment.target.region) in image.absent:
        usable = [item for item in IMAGES.values() if region not in item.absent and not item.problem]
        others = ", ".join(item.name for item in usable)
        text = f"AWS does not publish {image.name} in {region}: use an image address, or one of {others}"
        raise InvalidInputError(text, field="image")
    if image.problem:
        raise InvalidInputError(image.problem, field="image")
    base_check(deployment)
    device_check(deployment, engine=RunningEngine.of_deployment(deployment).engine)
    _check_form(deployment, image)
    options = LmiOptions.from_values(deployment.options, image, hosting=deployment.hosting)
    if image.family is Family.VLLM:
        vllm_environment_check(deployment.environment)
    if image.family is Family.WORKER and not deployment.base_model.sealed_hub_token:
        worker_checkpoint_check(deployment.base_model.source)
    if options.draft_model.startswith("/"):
        text = "options.draft_model must be s3://bucket/prefix or hf://organization/name on SageMaker"
        raise InvalidInputError(text, field="options.draft_model")
    if deployment.hosting == Hosting.ENDPOINT:
        endpoint_hosting_check(deployment)
    elif deployment.hosting != Hosting.FUSED and not (image.lora and options.enable_lora):
        text = (
            f"{image.name} does not serve adapters as configured: choose hosting fused, or an lmi image "
            f"with enable_lora"
        )
        raise InvalidInputError(text, field="hosting")
    if deployment.hosting == Hosting.COMPONENTS and image.family in FORMS:
        text = (
            f"{image.name} loads adapters only at its start: "
            "choose hosting preloaded or fused, or an lmi image"
        )
        raise InvalidInputError(text, field="hosting")
    if deployment.hosting == Hosting.ON_DEMAND and image.family != Family.WORKER:
        raise InvalidInputError("hosting on_demand requires an image of family worker", field="hosting")
    if (
        not 1 <= deployment.max_instances <= 1000
        or not 0 <= deployment.min_instances <= deployment.max_instances
    ):
        text = "instances must satisfy 0 <= min_instances <= max_instances and 1 <= max_instances <= 1000"
        raise InvalidInputError(text, field="min_instances")
    fallback_types_check(deployment)
    if deployment.endpoint:
        _check_endpoint(deployment)
    deployment.compute = compute_of(deployment)


def _check_form(deployment: Deployment, image: Image) -> None:
    """Refuse another form of requests: during an update, the endpoint's copies would need both."""
    before = Deployment.objects.filter(pk=deployment.pk).values_list("image_family", flat=True).first()
    if before and before != image.family and DISTINCT & {before, image.family}:
        raise InvalidInputError(
            f"image {image.name} speaks another form than this deployment's {before} image: create a "
            "deployment with it, then remove this one",
            field="image",
        )


def _check_endpoint(deployment: Deployment) -> None:
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,53}", deployment.endpoint):
        text = "endpoint must be 1-54 letters, digits and inner hyphens"
        raise InvalidInputError(text, field="endpoint")
    if deployment.endpoint.startswith("gw-"):
        text = "endpoint must not start with gw-, which is reserved for endpoints of single deployments"
        raise InvalidInputError(text, field="endpoint")
    others = Deployment.objects.filter(
        target=deployment.target, endpoint=deployment.endpoint, removal_asked_at=None, removed_at=None
    ).exclude(pk=deployment.pk)
    own = Image.from_name(deployment.image, family=deployment.image_family if "/" in deployment.image else "")
    for other in others:
        theirs = Image.from_name(other.image, family=other.image_family if "/" in other.image else "")
        if own.ami_version != theirs.ami_version:
            raise ConflictError(
                f"endpoint {deployment.endpoint} is shared with {other.name}, whose image {other.image} "
                "needs another host image (InferenceAmiVersion): use an endpoint of its own"
            )
        for field in _OF_ENDPOINT:
            if getattr(other, field) != getattr(deployment, field):
                raise ConflictError(
                    f"endpoint {deployment.endpoint} is shared with {other.name}, whose {field} is"
                    f" {getattr(other, field)}: use the same value"
                )


def _check_environment(environment: Any) -> None:
    if not isinstance(environment, dict) or len(environment) > 64:
        raise InvalidInputError("environment must be an object with at most 64 names", field="environment")
    for name, value in environment.items():
        if _ENV_NAME.fullmatch(name) is None or not isinstance(value, str) or len(value) > 1024:
            text = (
                f"environment {name[:60]!r}: names must consist of letters, digits and _, and values must be"
                " strings of at most 1024 characters"
            )
            raise InvalidInputError(text, field="environment")
        secret_variable_check(name, field="environment")


def policy_check(row: Deployment, policy: ScalingPolicy) -> None:
    """Check that the deployment's target supports the policy.

    Raises:
        InvalidInputError: a value is not valid for this kind of target.
        ConflictError: other deployments on the shared endpoint have other settings.
    """
    if row.merged_adapter and policy.least == 0:
        raise InvalidInputError(
            "a merged copy does not scale to zero: requests wake copies of the base model only",
            field="min_copies",
        )
    if row.target.kind == Target.Kind.OPENAI_HTTP:
        raise InvalidInputError(
            "targets of kind openai_http do not support scaling: scale the servers themselves", field="target"
        )
    if row.target.kind == Target.Kind.SAGEMAKER:
        _check_sagemaker_scaling(row, policy)
        return
    most = max(policy.max_copies, *(item.max_copies for item in policy.schedule), 1)
    if most > _MOST_LOCAL:
        raise InvalidInputError(f"a host runs at most {_MOST_LOCAL} copies", field="max_copies")
    default = ScalingPolicy(policy.min_copies, policy.max_copies, policy.target)
    for field in _SCALING_OF_ENDPOINT:
        if getattr(policy, field) != getattr(default, field):
            raise InvalidInputError(f"{field} is valid only for targets of kind sagemaker", field=field)


def _check_sagemaker_scaling(row: Deployment, policy: ScalingPolicy) -> None:
    if (
        policy.release is None
        and policy.release_cooldown_minutes != ScalingPolicy(1, 1, 1.0).release_cooldown_minutes
    ):
        text = "release_cooldown_minutes has no effect without release: set release too"
        raise InvalidInputError(text, field="release_cooldown_minutes")
    for field, own in (("in_after", _IN_AFTER_OF_AWS), ("out_after", _OUT_AFTER_OF_AWS)):
        if getattr(policy, field) != own:
            text = f"{field} must be {own} s in targets of kind sagemaker, where AWS creates the alarms"
            raise InvalidInputError(text, field=field)
    if row.hosting == Hosting.ENDPOINT:
        endpoint_policy_check(policy)
    for other, theirs in policies_on_endpoint(row):
        for field in _SCALING_OF_ENDPOINT:
            if getattr(theirs, field) != getattr(policy, field):
                raise ConflictError(
                    f"endpoint {row.endpoint} is shared with {other.name}, whose {field} is "
                    f"{getattr(theirs, field)}: use the same value"
                )


def base_url(text: str, *, field: str = "url") -> str:
    """Return an HTTP server's base URL without `/v1`. Raises InvalidInputError for anything else."""
    parts = urlsplit(text.strip().rstrip("/").removesuffix("/v1"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidInputError(f"{field} must be a URL such as http://host:port, got {text!r}", field=field)
    if parts.username or parts.password:
        raise InvalidInputError(
            f"{field} must not contain credentials: workers use the fleet token", field=field
        )
    return parts.geturl()


def credentials_check(credentials: ServerCredentials) -> None:
    """Check a server's token and headers. Raises InvalidInputError."""
    if not _HEADER_VALUE.fullmatch(credentials.token or "-"):
        text = "token must consist of visible ASCII characters, at most 4096"
        raise InvalidInputError(text, field="token")
    if len(credentials.headers) > 16:
        raise InvalidInputError("headers must have at most 16 entries", field="headers")
    for name, value in credentials.headers.items():
        if not _HEADER_NAME.fullmatch(name) or name in _OUR_HEADERS:
            raise InvalidInputError(
                f"headers {name[:60]!r} is no lower-case name of a header that gateways may send: they set "
                f"{', '.join(sorted(_OUR_HEADERS))} themselves",
                field="headers",
            )
        if name == "authorization" and credentials.token:
            raise InvalidInputError("headers must not have authorization beside a token", field="headers")
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidInputError(
                f"headers {name}: the value must be 1 to 4096 visible ASCII characters", field="headers"
            )
