"""Makes the bucket of GRAFTWORK_ARTIFACT_STORE when it is not there; any S3 API will do."""

from __future__ import annotations

import os
import sys
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import ClientError


def main() -> int:
    """Returns the exit status."""
    store = urlsplit(os.environ["GRAFTWORK_ARTIFACT_STORE"])
    if store.scheme != "s3":
        print(f"{store.geturl()} needs no bucket")
        return 0
    client = boto3.client("s3", endpoint_url=os.environ.get("GRAFTWORK_S3_ENDPOINT_URL") or None)
    try:
        client.head_bucket(Bucket=store.netloc)
        print(f"bucket {store.netloc} is there")
    except ClientError as error:
        # Only "not found" means that it may be made; "forbidden" means that it is somebody else's.
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise
        client.create_bucket(Bucket=store.netloc)
        print(f"made bucket {store.netloc}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
