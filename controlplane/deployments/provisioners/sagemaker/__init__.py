"""Amazon SageMaker: an endpoint, a base model's inference component, and adapters' over it."""

from __future__ import annotations

from controlplane.deployments.provisioners.sagemaker.provisioner import SageMakerProvisioner

__all__ = ["SageMakerProvisioner"]
