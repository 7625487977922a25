"""`python -m worker_engine.zygote`: a process that has imported everything, forked for each worker."""
