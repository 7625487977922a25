"""Application Auto Scaling of inference components and variants, with alarms in CloudWatch."""
