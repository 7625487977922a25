"""Number of copies: one policy for SageMaker's autoscaler and for our own controller."""
