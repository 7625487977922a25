"""Containers as processes of this host, one for each copy, through SageMaker's container contract."""
