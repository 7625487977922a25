"""Export of adapters' metrics to Amazon CloudWatch."""
