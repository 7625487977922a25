"""Containers as processes of this host, one per copy, with SageMaker's container contract."""
