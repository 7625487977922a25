"""Autoscaler of copies on hosts; SageMaker has its own."""
