"""What SageMaker's control plane keeps: models, endpoints, inference components, jobs, tags."""
