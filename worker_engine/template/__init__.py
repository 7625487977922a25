"""`python -m worker_engine.template`: a process that has imported everything, forked for each worker."""
