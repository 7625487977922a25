"""Scaling policies of deployments. SageMaker applies them itself; on hosts `autoscaler` does."""
