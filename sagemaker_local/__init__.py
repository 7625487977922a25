"""A local SageMaker for development and tests: what boto3 and the gateway call, in front of real workers."""
