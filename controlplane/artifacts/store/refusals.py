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

UNKNOWN: Final = "what S3 says tells what to change"
"""Advice for a code that is not in the table."""
SILENT: Final = "check the network and GRAFTWORK_S3_ENDPOINT_URL, and try again"
REFUSALS: Final[tuple[tuple[str, str], ...]] = (
    ("InvalidObjectState|ObjectNotInActiveTier", "the file is archived (S3 Glacier): restore it, and let no "
     "lifecycle rule archive what lies there"),
    ("^KMS", "the bucket's KMS key cannot be used: see that it is enabled, and let the control plane's role "
     "use it"),
    ("ExpiredToken|TokenRefreshRequired|RequestExpired", "the control plane's credentials have expired: "
     "renew them, or let the role's chain do it"),
    ("RequestTimeTooSkewed", "the clock of the control plane's machine is wrong: have it set by NTP"),
    ("AccessDenied|AllAccessDisabled|AccountProblem|NotSignedUp|^403$", "let the control plane's role do "
     "this in that bucket, and use the KMS key that the bucket is encrypted with"),
    ("InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidSecurity|MissingSecurity", "S3 does not "
     "accept the control plane's credentials: give it others, by environment, profile, web identity or "
     "instance role"),
    ("NoSuchBucket|InvalidBucketName", "there is no such bucket: make it, or name another"),
    ("PermanentRedirect|Redirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|^30[17]$", "the "
     "bucket is in another region: set AWS_DEFAULT_REGION to its own"),
    ("NoSuchKey|NoSuchVersion|NoSuchUpload|^404$", "it is not there any more: put it there again"),
    ("EntityTooLarge|TooManyParts", "S3 does not take a file of this size: make it smaller"),
    ("SlowDown|Throttl|RequestLimit|ServiceUnavailable|InternalError|OperationAborted|RequestTimeout"
     "|IncompleteBody|^5[0-9][0-9]$", "S3 has trouble of its own: try again in a moment"),
    ("^400$", "S3 gives no reason here: see whether the credentials have expired, or the bucket is in "
     "another region"),
    ("^Invalid(Request|Part|WriteOffset|Argument|Encryption)|EncryptionTypeMismatch|NotImplemented|BadDigest",
     "whoever answers does not take such a request: check GRAFTWORK_S3_ENDPOINT_URL and how the bucket is "
     "encrypted"),
)  # fmt: skip
"""Advice by pattern of S3's error code; HEAD requests have none, so their status is matched."""
_UNSENT: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    (
        (NoCredentialsError, PartialCredentialsError, ProfileNotFound, CredentialRetrievalError,
         MetadataRetrievalError, TokenRetrievalError, SSOError),
        "the control plane finds no AWS credentials: give it an environment, a profile, a web identity or an "
        "instance role",
    ),
    (
        (ConfigParseError, InvalidRegionError),
        "the control plane's AWS configuration (its files and AWS_* variables) is wrong: mend what is named",
    ),
    (
        (SSLError,),
        "the certificate of whoever answers is not trusted: check GRAFTWORK_S3_ENDPOINT_URL, or name its "
        "authority in AWS_CA_BUNDLE",
    ),
)  # fmt: skip


def s3_advice(error: Exception) -> str:
    """Return the advice for an error of boto3."""
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
        code = str(details.get("Code") or status)
        return next((advice for pattern, advice in REFUSALS if re.search(pattern, code)), UNKNOWN)
    return next((advice for kinds, advice in _UNSENT if isinstance(error, kinds)), SILENT)
