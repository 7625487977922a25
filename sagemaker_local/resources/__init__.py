"""Resources of SageMaker's control plane: models, endpoints, inference components, jobs, tags."""
