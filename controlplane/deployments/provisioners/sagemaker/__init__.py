"""Provisioners for Amazon SageMaker: inference components on an endpoint, or a model that is an endpoint."""

from __future__ import annotations

from controlplane.deployments.provisioners.sagemaker.endpoint_provisioner import EndpointProvisioner
from controlplane.deployments.provisioners.sagemaker.provisioner import SageMakerProvisioner

__all__ = ["EndpointProvisioner", "SageMakerProvisioner"]
