"""Application Auto Scaling over inference components and variants, with alarms that stand in CloudWatch."""
