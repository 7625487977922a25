"""Recipes that SageMaker runs: `CreateOptimizationJob`, polled until it has ended."""
