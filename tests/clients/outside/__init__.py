"""Programs that use one client each, run by a Python that has it: URL as argument, what was seen as JSON out.

Of ours they import nothing but `told`: their environment has the client and what it needs alone.
"""
