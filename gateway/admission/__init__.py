"""Limits: exact rates, places and budgets of keys, projects, tenants and models across gateway processes."""

from gateway.admission.admit import PRIORITY, Admission, reservation
from gateway.admission.broker import Broker, line
from gateway.admission.plan import Plan, Ticket

__all__ = ["PRIORITY", "Admission", "Broker", "Plan", "Ticket", "line", "reservation"]
