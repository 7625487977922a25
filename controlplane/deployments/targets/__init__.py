"""Targets: places where deployments run."""
