"""Recipes that SageMaker carries out: `CreateOptimizationJob`, looked at until it has ended."""
