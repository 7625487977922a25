"""Advice for S3's errors and outages: the first matching row of a table, one sentence per row."""

from __future__ import annotations

import re
from typing import Final

from botocore.exceptions import (
    ClientError,
    ConfigParseError,
    CredentialRetrievalError,
    InvalidRegionError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
    SSOError,
    TokenRetrievalError,
)

UNKNOWN: Final = "follow the error message of S3"
"""Advice for a code that is not in the table."""
SILENT: Final = "check the network and GRAFTWORK_S3_ENDPOINT_URL, and try again"
REFUSALS: Final[tuple[tuple[str, str], ...]] = (
    (
        "InvalidObjectState|ObjectNotInActiveTier",
        "the file is archived (S3 Glacier): restore it, and "
        "exempt this prefix from archiving lifecycle rules",
    ),
    (
        "^KMS",
        "the bucket's KMS key cannot be used: enable the key, and allow the control plane's role to use it",
    ),
    (
        "ExpiredToken|TokenRefreshRequired|RequestExpired",
        "the control plane's credentials have expired: renew them, or use a role that renews them",
    ),
    ("RequestTimeTooSkewed", "the clock of the control plane's machine is wrong: synchronize it by NTP"),
    (
        "AccessDenied|AllAccessDisabled|AccountProblem|NotSignedUp|^403$",
        "allow the control plane's role this operation on the bucket, and the use of the bucket's KMS key",
    ),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidSecurity|MissingSecurity",
        "S3 does not "
        "accept the control plane's credentials: provide valid ones by environment, profile, web "
        "identity or instance role",
    ),
    ("NoSuchBucket|InvalidBucketName", "the bucket does not exist: create it, or name another bucket"),
    (
        "PermanentRedirect|Redirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|^30[17]$",
        "the bucket is in another region: set AWS_DEFAULT_REGION to the bucket's region",
    ),
    ("NoSuchKey|NoSuchVersion|NoSuchUpload|^404$", "the object no longer exists: upload it again"),
    ("EntityTooLarge|TooManyParts", "S3 does not accept a file of this size: reduce the size"),
    (
        "SlowDown|Throttl|RequestLimit|ServiceUnavailable|InternalError|OperationAborted|RequestTimeout"
        "|IncompleteBody|^5[0-9][0-9]$",
        "S3 is temporarily unavailable: try again in a moment",
    ),
    (
        "^400$",
        "S3 gives no reason: check if the credentials have expired, or the bucket is in another region",
    ),
    (
        "^Invalid(Request|Part|WriteOffset|Argument|Encryption)|EncryptionTypeMismatch|NotImplemented|BadDigest",
        "the S3 endpoint does not support this request: check GRAFTWORK_S3_ENDPOINT_URL and the "
        "bucket's encryption",
    ),
)
"""Advice by pattern of S3's error code; HEAD requests have none, so their status is matched."""
_UNSENT: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    (
        (
            NoCredentialsError,
            PartialCredentialsError,
            ProfileNotFound,
            CredentialRetrievalError,
            MetadataRetrievalError,
            TokenRetrievalError,
            SSOError,
        ),
        "the control plane finds no AWS credentials: provide them by environment, profile, web identity "
        "or instance role",
    ),
    (
        (ConfigParseError, InvalidRegionError),
        "the control plane's AWS configuration (its files and AWS_* variables) is invalid: correct the "
        "named setting",
    ),
    (
        (SSLError,),
        "the certificate of the S3 endpoint is not trusted: check GRAFTWORK_S3_ENDPOINT_URL, or name "
        "its certificate authority in AWS_CA_BUNDLE",
    ),
)


def s3_advice(error: Exception) -> str:
    """Return the advice for an error of boto3."""
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
        code = str(details.get("Code") or status)
        return next((advice for pattern, advice in REFUSALS if re.search(pattern, code)), UNKNOWN)
    return next((advice for kinds, advice in _UNSENT if isinstance(error, kinds)), SILENT)
