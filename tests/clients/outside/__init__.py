"""Programs that use one client each, run by a Python that has it: URL as argument, what was seen as JSON out.

Of ours they import only `requests_and_results`, since their environment holds the client and its needs alone.
"""
