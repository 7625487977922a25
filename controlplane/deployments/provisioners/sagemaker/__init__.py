"""Provisioner for Amazon SageMaker: an endpoint, a base inference component, and adapter components."""

from __future__ import annotations

from controlplane.deployments.provisioners.sagemaker.provisioner import SageMakerProvisioner

__all__ = ["SageMakerProvisioner"]
