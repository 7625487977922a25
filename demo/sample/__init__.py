"""Sample data of the demo: weeks of usage, invoices, a canary, a deployment and a measured optimization.

Everything is made by the services that the product itself uses, at the times when it would have happened.
Names end in "(sample)" or "-sample". `python -m demo --remove-sample` removes it.
"""
