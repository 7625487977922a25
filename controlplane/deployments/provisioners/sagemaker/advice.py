"""Table of advice for AWS's refusals and failures: one row per cause, one sentence per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    InvalidRegionError,
    MetadataRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    RefreshWithMFAUnsupportedError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as AwsConnectionError

UNKNOWN: Final = "AWS refused the call: see its message for what to change."
"""Advice for a code without a row."""
THROTTLED: Final = "AWS throttled the call; it is retried."


@dataclass(frozen=True, slots=True)
class Row:
    """`code` and `message` are patterns; "" matches all. `transient`: the same call may succeed later."""

    code: str
    message: str
    advice: str
    transient: bool = False
    wait: float = 0.0


_GONE: Final = "A required resource was deleted in the meantime: it is looked up and created again."
_SOURCE: Final = (
    "The source of the control plane's AWS credentials provides none: check its process, web identity, "
    "instance role or single sign-on; the call is retried."
)
_CLOCK: Final = (
    "The clock of the control plane's machine is wrong: synchronize it by NTP; the call is retried."
)
REFUSALS: Final[tuple[Row, ...]] = (
    Row("RequestExpired|RequestTimeTooSkewed", "", _CLOCK, True, 60.0),
    Row("InvalidSignature|SignatureDoesNotMatch", "expired|not yet current", _CLOCK, True, 60.0),
    Row(
        "ExpiredToken",
        "",
        "The credentials have expired: renew them, or use a role that renews them.",
        True,
        15.0,
    ),
    Row(
        "UnrecognizedClient|InvalidClientTokenId|InvalidAccessKeyId|InvalidSignature|SignatureDoesNotMatch"
        "|IncompleteSignature|MissingAuthenticationToken",
        "",
        "AWS does not accept the credentials of the control plane's Celery worker: provide valid ones by "
        "environment, profile, web identity or instance role.",
    ),
    Row(
        "AccessDenied|NotAuthorized|Forbidden|^403$",
        "PassRole",
        "The control plane's role may not pass the target's role_arn: allow iam:PassRole for that role.",
    ),
    Row(
        "AccessDenied|NotAuthorized|Forbidden|^403$",
        "AssumeRole",
        "The target's assume_role_arn does not trust the control plane's role: allow sts:AssumeRole on "
        "both sides.",
    ),
    Row(
        "AccessDenied|NotAuthorized|Forbidden|^403$",
        "",
        "The control plane's role lacks the permission for this call: allow the action that AWS names.",
    ),
    Row(
        "OptInRequired|SubscriptionRequired|RegionDisabled",
        "",
        "The account has no access to this service or region: enable it.",
    ),
    Row("InvalidIdentityToken|IDPRejectedClaim|IDPCommunicationError", "", _SOURCE, True, 15.0),
    Row(
        "MalformedPolicyDocument|PackedPolicyTooLarge",
        "",
        "The session policies or tags of the target's assume_role_arn are not accepted: correct the role, "
        "or use another one.",
    ),
    Row(
        "ResourceLimitExceeded|ServiceQuotaExceeded|LimitExceeded",
        "",
        "A quota of the account is exhausted: request an increase in Service Quotas (SageMaker), or "
        "remove resources.",
        True,
        120.0,
    ),
    Row(
        "ValidationException",
        "(could not|cannot|unable to) (access|find|download).*(model data|s3|artifact|object)",
        "SageMaker cannot read the archive: allow the target's role_arn to read the bucket of the "
        "target's store.",
    ),
    Row(
        "ValidationException",
        "assume.*role|role.*(trust|assume|invalid|exist)",
        "SageMaker cannot use the target's role_arn: it must exist and trust sagemaker.amazonaws.com.",
    ),
    Row(
        "ValidationException",
        r"\bimage|repository|\becr\b",
        "SageMaker does not accept the container image: check its name, the region, and that role_arn may "
        "pull it.",
    ),
    Row(
        "ValidationException",
        "instance type|instancetype|not supported in",
        "This instance type is not available for endpoints in this region: choose another instance_type.",
    ),
    Row(
        "ValidationException",
        "(not enough|insufficient|exceed).*(accelerator|memory|cpu|resource|capacity)",
        "The copies do not fit on the endpoint's instances: raise max_instances, use a larger "
        "instance_type, or lower the compute requirements.",
    ),
    Row(
        "ValidationException",
        "maximum number|limit|at most",
        "A limit of SageMaker is reached: distribute the deployments over more endpoints, or place fewer "
        "adapters (adapter_scope named).",
    ),
    Row(
        "FailedResourceAccess",
        "",
        "Application Auto Scaling cannot read its scalable target or alarms: allow the creation of its "
        "service-linked role (iam:CreateServiceLinkedRole).",
    ),
    Row(
        "ValidationException|ResourceInUse|Conflict",
        "in use|in[ -]progress|not in ?service|status|currently|being (created|updated|deleted)|pending",
        "Another operation on this resource is in progress; the call is retried.",
        True,
    ),
    Row("ResourceInUse|Conflict|ConcurrentUpdate", "", "The resource is in use; the call is retried.", True),
    Row(
        "InvalidObjectState|ObjectNotInActiveTier",
        "",
        "The file is archived (S3 Glacier) and cannot be read: restore it, and exclude the target's store "
        "from archiving lifecycle rules.",
    ),
    Row(
        "^KMS",
        "",
        "The KMS key of the bucket cannot be used: enable it, and allow the control plane's role and the "
        "target's role_arn to use it.",
    ),
    Row(
        "NoSuchBucket",
        "",
        "The bucket of the target's store does not exist: create it in the target's region.",
    ),
    Row(
        "PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|^30[17]$",
        "",
        "The bucket of the target's store is in another region: use a bucket in the target's region.",
    ),
    Row("ResourceNotFound|ObjectNotFound|NoSuchUpload|NoSuchKey|^404$", "", _GONE, True),
    Row(
        "ValidationException",
        r"(could not|cannot) find (the )?(\w+ )?(endpoint|inference component|model|variant|resource)\b"
        r"|(endpoint|inference component|model|variant)( config\w*)?( [^ ]+)? (does not exist|not found)",
        _GONE,
        True,
    ),
    Row(
        "ValidationException",
        "could not find|cannot find|does not exist|not found",
        "A resource that the target or the deployment names does not exist in this account and region: "
        "create it, or name another one.",
    ),
    Row("InvalidNextToken", "", "A list changed while it was read; it is read again.", True),
    Row(
        "UnknownOperation|InvalidAction|MalformedHttpRequest|NotImplemented",
        "",
        "The server does not support this call: check the target's endpoint_url, or upgrade the server.",
    ),
    Row(
        "RequestEntityTooLarge|EntityTooLarge|TooManyParts",
        "",
        "The request is too large for AWS: shorten the environment, the options, or the file that AWS names.",
    ),
    Row(
        "ValidationException|ValidationError|^Invalid(Parameter|Request|Format|WriteOffset)|EncryptionTypeMismatch",
        "",
        "SageMaker does not accept a value: change the value that it names.",
    ),
    Row(
        "RequestAborted|RequestTimeout|IncompleteBody",
        "",
        "The connection to AWS was interrupted; the call is retried.",
        True,
    ),
    Row(
        "InternalFailure|InternalServ|InternalError|InternalDependency|ServiceUnavailable|ServiceException"
        "|^5[0-9][0-9]$",
        "",
        "AWS returned an internal error; the call is retried.",
        True,
    ),
)

FAILURES: Final[tuple[Row, ...]] = (
    Row(
        "",
        "alarms? went off|alarm.*(state|rollback|rolled back)",
        "An alarm of the update went off: check its metric in CloudWatch, fix the cause, then start "
        "another rollout.",
    ),
    Row(
        "",
        "within MaximumExecutionTimeout|exceeded.*execution timeout",
        "The update exceeded its time limit: raise the rollout's max_seconds or batch_copies, then start "
        "another rollout.",
    ),
    Row(
        "",
        "insufficient.*capacity|unable to provision|capacity error|no capacity",
        "AWS has no capacity for this instance type: try again later, add fallback_instance_types, or choose "
        "another instance_type or region.",
    ),
    Row(
        "",
        "not enough hardware|(insufficient|not enough).*(accelerator|memory|cpu|resource)",
        "A copy does not fit on the instances: raise max_instances, or lower the compute requirements.",
    ),
    Row(
        "",
        "out of memory|oom|cuda.*memory",
        "The container ran out of memory: lower max_model_len, max_rolling_batch_size or max_loras, or "
        "use a larger instance_type.",
    ),
    Row(
        "",
        "adapter.*rank|max_lora_rank|lora.*rank",
        "The adapter's rank exceeds the container's maximum: raise options.max_lora_rank.",
    ),
    Row(
        "",
        "cannotpull|pull.*image|image.*(not found|exist)|ecr",
        "The image cannot be pulled: check its name, and that role_arn may read the repository.",
    ),
    Row(
        "",
        "(download|access|find|read|had).*(model|s3|artifact|archive)|s3://",
        "The model's or adapter's files cannot be read: allow role_arn to read the store's bucket, and "
        "check that the files exist.",
    ),
    Row(
        "",
        "ping|health check|did not (start|respond|pass)|container.*(exit|crash|fail)",
        "The container did not become healthy: see its log in CloudWatch "
        "(/aws/sagemaker/InferenceComponents).",
    ),
    Row(
        "",
        "quota|limit",
        "A quota of the account is exhausted: request an increase in Service Quotas (SageMaker).",
    ),
    Row(
        "", "", "SageMaker could not create or update the resource: fix the cause that it names, then retry."
    ),
)


UNSENT: Final[tuple[tuple[tuple[type[Exception], ...], Row], ...]] = (
    (
        (NoCredentialsError, PartialCredentialsError),
        Row(
            "NoCredentials",
            "",
            "The control plane finds no AWS credentials: provide them to its Celery worker, and to its web "
            "server for reading prices, by environment, profile, web identity or instance role.",
        ),
    ),
    (
        (ProfileNotFound,),
        Row(
            "NoCredentials",
            "",
            "The AWS profile of the control plane's Celery worker is not in its configuration files: "
            "correct AWS_PROFILE, or add the profile.",
        ),
    ),
    (
        (
            CredentialRetrievalError,
            MetadataRetrievalError,
            TokenRetrievalError,
            SSOError,
            RefreshWithMFAUnsupportedError,
        ),
        Row("NoCredentials", "", _SOURCE, True, 15.0),
    ),
    ((NoRegionError,), Row("NoRegion", "", "No region is set: set the target's region.")),
    ((InvalidRegionError,), Row("NoRegion", "", "The target's region is not an AWS region: correct it.")),
    (
        (ParamValidationError,),
        Row("Invalid", "", "A value has a format that SageMaker does not accept: change it."),
    ),
    (
        (SSLError,),
        Row(
            "NoAnswer",
            "",
            "The server's certificate is not trusted: check the target's endpoint_url and the proxy, or "
            "set its authority in AWS_CA_BUNDLE; the call is retried.",
            True,
        ),
    ),
    (
        (AwsConnectionError, HTTPClientError, IncompleteReadError, ChecksumError, FlexibleChecksumError),
        Row(
            "NoAnswer",
            "",
            "AWS does not respond: check the network, or the target's endpoint_url; the call is retried.",
            True,
        ),
    ),
    (
        (BotoCoreError,),
        Row(
            "Unsent",
            "",
            "The AWS configuration of the control plane's Celery worker (files and AWS_* variables) "
            "prevents this call: correct the setting that the error names.",
        ),
    ),
)
"""By exception of botocore, first match: AWS sent no response, or an incomplete one."""
