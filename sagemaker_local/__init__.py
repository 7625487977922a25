"""A local SageMaker for development and tests: the APIs that boto3 and the gateway use, with real workers."""
