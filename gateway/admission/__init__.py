"""Limits: exact rates, places and budgets of keys, projects, tenants and models across gateway processes."""

from gateway.admission.admit import PRIORITY, Admission, Reservation, reservation
from gateway.admission.broker import Broker, line
from gateway.admission.plan import Plan, Ticket

__all__ = ["PRIORITY", "Admission", "Broker", "Plan", "Reservation", "Ticket", "line", "reservation"]
