"""How many copies there are to be: one policy, for SageMaker's autoscaler and for our own."""
