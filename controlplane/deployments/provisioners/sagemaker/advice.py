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

UNKNOWN: Final = "AWS refuses; what it says tells what to change."
"""Advice for a code without a row."""
THROTTLED: Final = "AWS asks for fewer calls; it is tried again."


@dataclass(frozen=True, slots=True)
class Row:
    """`code` and `message` are patterns; "" matches all. `transient`: the same call may succeed later."""

    code: str
    message: str
    advice: str
    transient: bool = False
    wait: float = 0.0


_GONE: Final = "Something that this needs has gone meanwhile: it is looked for, and made, again."
_SOURCE: Final = (
    "Where the control plane's AWS credentials come from gives none now: check the process, web identity, "
    "instance role or single sign-on that it names; it is tried again."
)
_CLOCK: Final = "The clock of the control plane's machine is wrong: have it set by NTP; it is tried again."
REFUSALS: Final[tuple[Row, ...]] = (
    Row("RequestExpired|RequestTimeTooSkewed", "", _CLOCK, True, 60.0),
    Row("InvalidSignature|SignatureDoesNotMatch", "expired|not yet current", _CLOCK, True, 60.0),
    Row("ExpiredToken", "", "The credentials have expired: renew them, or let the role's chain do "
        "it.", True, 15.0),
    Row(
        "UnrecognizedClient|InvalidClientTokenId|InvalidAccessKeyId|InvalidSignature|SignatureDoesNotMatch"
        "|IncompleteSignature|MissingAuthenticationToken",
        "",
        "AWS does not accept the credentials of the control plane's Celery worker: give it others, by "
        "environment,"
        " profile, web identity or instance role.",
    ),
    Row(
        "AccessDenied|NotAuthorized|Forbidden|^403$", "PassRole",
        "The control plane's role may not hand on the target's role_arn: allow it iam:PassRole for "
        "that role.",
    ),
    Row(
        "AccessDenied|NotAuthorized|Forbidden|^403$", "AssumeRole",
        "The target's assume_role_arn does not trust the control plane's role: allow sts:AssumeRole "
        "on both sides.",
    ),
    Row(
        "AccessDenied|NotAuthorized|Forbidden|^403$", "",
        "The control plane's role lacks the permission for this call: allow the action that AWS names.",
    ),
    Row("OptInRequired|SubscriptionRequired|RegionDisabled", "", "The account has no access to this service "
        "or region: enable it."),
    Row("InvalidIdentityToken|IDPRejectedClaim|IDPCommunicationError", "", _SOURCE, True, 15.0),
    Row("MalformedPolicyDocument|PackedPolicyTooLarge", "", "The policies or tags of the session of the "
        "target's assume_role_arn are not accepted: mend the role's, or name another."),
    Row(
        "ResourceLimitExceeded|ServiceQuotaExceeded|LimitExceeded", "",
        "A quota of the account is used up: ask for more under Service Quotas (SageMaker), or remove "
        "something.",
        True, 120.0,
    ),
    Row(
        "ValidationException", "(could not|cannot|unable to) (access|find|download).*(model "
            "data|s3|artifact|object)",
        "SageMaker cannot read the archive: let the target's role_arn read the bucket of the target's store.",
    ),
    Row(
        "ValidationException", "assume.*role|role.*(trust|assume|invalid|exist)",
        "SageMaker cannot use the target's role_arn: it must exist and trust sagemaker.amazonaws.com.",
    ),
    Row(
        "ValidationException", r"\bimage|repository|\becr\b",
        "SageMaker does not accept the container's image: check its name, the region, and that "
        "role_arn may pull it.",
    ),
    Row(
        "ValidationException", "instance type|instancetype|not supported in",
        "This instance type cannot be had for endpoints in this region: choose another for the deployment.",
    ),
    Row(
        "ValidationException", "(not enough|insufficient|exceed).*(accelerator|memory|cpu|resource|capacity)",
        "The copies do not fit on the endpoint's instances: raise max_instances, take a larger "
        "instance_type, or lower"
        " the compute requirements.",
    ),
    Row(
        "ValidationException", "maximum number|limit|at most",
        "A bound of SageMaker's is reached: use another endpoint for some of it, or place fewer adapters"
        " (adapter_scope named).",
    ),
    Row("FailedResourceAccess", "", "Application Auto Scaling may not read what it is to scale, or its "
        "alarms: let its service-linked role be made (iam:CreateServiceLinkedRole)."),
    Row(
        "ValidationException|ResourceInUse|Conflict",
        "in use|in[ -]progress|not in ?service|status|currently|being (created|updated|deleted)|pending",
        "Something else is still happening to this resource; it is tried again.", True,
    ),
    Row("ResourceInUse|Conflict|ConcurrentUpdate", "", "Something else uses this resource at the "
        "moment; it is tried again.", True),
    Row("InvalidObjectState|ObjectNotInActiveTier", "", "The file is archived (S3 Glacier), where nothing "
        "can be read: restore it, and let no lifecycle rule archive what lies in the target's store."),
    Row("^KMS", "", "The KMS key of the bucket cannot be used: see that it is enabled, and let the control "
        "plane's role and the target's role_arn use it."),
    Row("NoSuchBucket", "", "The bucket of the target's store does not exist: make it in the "
        "target's region."),
    Row(
        "PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|^30[17]$", "",
        "The bucket of the target's store is in another region: use one in the target's.",
    ),
    Row("ResourceNotFound|ObjectNotFound|NoSuchUpload|NoSuchKey|^404$", "", _GONE, True),
    Row(
        "ValidationException",
        r"(could not|cannot) find (the )?(\w+ )?(endpoint|inference component|model|variant|resource)\b"
        r"|(endpoint|inference component|model|variant)( config\w*)?( [^ ]+)? (does not exist|not found)",
        _GONE, True,
    ),
    Row(
        "ValidationException", "could not find|cannot find|does not exist|not found",
        "Something that the target or the deployment names is not in this account and region: make it, or "
        "name another.",
    ),
    Row("InvalidNextToken", "", "A list has changed while it was read; it is read again.", True),
    Row(
        "UnknownOperation|InvalidAction|MalformedHttpRequest|NotImplemented", "",
        "Whoever answers there does not know this call: check the target's endpoint_url, or update it.",
    ),
    Row("RequestEntityTooLarge|EntityTooLarge|TooManyParts", "", "AWS does not take this much at once: "
        "shorten the environment, the options, or the file that it names."),
    Row("ValidationException|ValidationError|^Invalid(Parameter|Request|Format|WriteOffset)|EncryptionTypeMismatch",
        "",
        "SageMaker does not accept this value: change it."),
    Row("RequestAborted|RequestTimeout|IncompleteBody", "", "The connection to AWS broke; it is tried "
        "again.", True),
    Row(
        "InternalFailure|InternalServ|InternalError|InternalDependency|ServiceUnavailable|ServiceException"
        "|^5[0-9][0-9]$", "",
        "AWS has trouble of its own; it is tried again.", True,
    ),
)  # fmt: skip

FAILURES: Final[tuple[Row, ...]] = (
    Row("", "alarms? went off|alarm.*(state|rollback|rolled back)", "An alarm that watched the update has "
         "gone off: see in CloudWatch what it measured, mend that, then roll out again."),
    Row("", "within MaximumExecutionTimeout|exceeded.*execution timeout", "The update took longer than it "
         "may: raise the rollout's max_seconds or batch_copies, then roll out again."),
    Row(
        "", "insufficient.*capacity|unable to provision|capacity error|no capacity",
        "AWS has no instance of this type to give now: try again later, or choose another "
        "instance_type or region.",
    ),
    Row(
        "", "not enough hardware|(insufficient|not enough).*(accelerator|memory|cpu|resource)",
        "A copy does not fit beside the others: raise max_instances, or lower the compute requirements.",
    ),
    Row("", "out of memory|oom|cuda.*memory", "The container ran out of memory: lower max_model_len,"
         " max_rolling_batch_size or max_loras, or take a larger instance_type."),
    Row("", "adapter.*rank|max_lora_rank|lora.*rank", "The adapter's rank is above the container's:"
         " raise options.max_lora_rank."),
    Row("", "cannotpull|pull.*image|image.*(not found|exist)|ecr", "The image cannot be pulled: "
        "check its name,"
         " and that role_arn may read the repository."),
    Row("", "(download|access|find|read|had).*(model|s3|artifact|archive)|s3://",
         "The model's or adapter's files cannot be read: let role_arn read the store's bucket,"
         " and check that they are there."),
    Row("", "ping|health check|did not (start|respond|pass)|container.*(exit|crash|fail)",
         "The container did not become healthy: its log in CloudWatch "
         "(/aws/sagemaker/InferenceComponents) says why."),
    Row("", "quota|limit", "A quota of the account is used up: ask for more under Service Quotas "
        "(SageMaker)."),
    Row("", "", "SageMaker gave this up: change what it names, then retry."),
)  # fmt: skip


UNSENT: Final[tuple[tuple[tuple[type[Exception], ...], Row], ...]] = (
    (
        (NoCredentialsError, PartialCredentialsError),
        Row("NoCredentials", "", "The control plane's Celery worker finds no AWS credentials: give it an "
            "environment, a profile, a web identity or an instance role."),
    ),
    (
        (ProfileNotFound,),
        Row("NoCredentials", "", "The AWS profile that the control plane's Celery worker is told to use is "
            "in none of its files: mend AWS_PROFILE, or add it."),
    ),
    (
        (CredentialRetrievalError, MetadataRetrievalError, TokenRetrievalError, SSOError,
         RefreshWithMFAUnsupportedError),
        Row("NoCredentials", "", _SOURCE, True, 15.0),
    ),
    ((NoRegionError,), Row("NoRegion", "", "No region is named: give the target one.")),
    ((InvalidRegionError,), Row("NoRegion", "", "The target's region reads like none of AWS's: mend it.")),
    (
        (ParamValidationError,),
        Row("Invalid", "", "A value has a form that SageMaker does not take: change it."),
    ),
    (
        (SSLError,),
        Row("NoAnswer", "", "The certificate of whoever answers is not trusted: check the target's "
            "endpoint_url and the proxy, or name its authority in AWS_CA_BUNDLE; it is tried again.", True),
    ),
    (
        (AwsConnectionError, HTTPClientError, IncompleteReadError, ChecksumError, FlexibleChecksumError),
        Row("NoAnswer", "", "AWS does not answer: check the network, or the target's endpoint_url; it is "
            "tried again.", True),
    ),
    (
        (BotoCoreError,),
        Row("Unsent", "", "The AWS configuration of the control plane's Celery worker, its files and AWS_* "
            "variables, does not let this call be made: mend what is named."),
    ),
)  # fmt: skip
"""By botocore's own exception, first match: AWS sent no answer, or an incomplete one."""
