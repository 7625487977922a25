"""Fair scheduling: tenants' shares of the worker, counted in virtual tokens.

Sheng et al. 2024, "Fairness in Serving Large Language Models" (arXiv:2401.00588): each tenant's counter grows
by the tokens it is served, divided by its weight; the smallest counter is served next. A returning tenant
starts at the smallest counter among waiting tenants, so that idle time earns no credit. It may start lower by
a short burst, because low-volume tenants send unevenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

INPUT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0
"""Virtual tokens of a computed prompt token and of a generated token, as in the paper."""
MAX_ACCOUNTS: Final = 4096
"""Above this many, forget idle tenants whose counter would be raised on return anyway."""


class Account:
    """One tenant's counter, and how many of its requests are running and waiting."""

    __slots__ = ("num_running", "num_waiting", "served", "tenant", "weight")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.weight = 1.0
        self.served = 0.0
        self.num_running = self.num_waiting = 0

    @property
    def active(self) -> bool:
        return bool(self.num_running or self.num_waiting)

    def charge_input(self, tokens: int) -> None:
        self.served += INPUT_WEIGHT * tokens / self.weight

    def charge_output(self) -> None:
        self.served += OUTPUT_WEIGHT / self.weight


class Accounts:
    """The accounts of all tenants with current or recent requests."""

    def __init__(self, burst: float = 0.0) -> None:
        """`burst`: virtual tokens by which a returning tenant may be behind those that wait."""
        self._accounts: dict[str, Account] = {}
        self.burst: Final = burst
        self._last_queued: Account | None = None

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def __len__(self) -> int:
        return len(self._accounts)

    def enqueue(self, tenant: str, weight: float) -> Account:
        """Count one more waiting request and return the account, raised to the level if it had none."""
        account = self._accounts.get(tenant)
        if account is None:
            self._forget_idle()
            account = self._accounts[tenant] = Account(tenant)
        account.weight = weight
        self.requeue(account)
        return account

    def requeue(self, account: Account) -> None:
        """Count one more waiting request."""
        if not account.num_waiting:
            account.served = max(account.served, self._level() - self.burst)
        account.num_waiting += 1

    def dequeue(self, account: Account) -> None:
        """Count one waiting request less."""
        account.num_waiting -= 1
        self._last_queued = account

    def row_shares(self, rows: int) -> dict[Account, float]:
        """Return how many of `rows` each active tenant is entitled to, by weight."""
        active = [account for account in self if account.active]
        total = sum(account.weight for account in active)
        return {account: rows * account.weight / total for account in active}

    def _level(self) -> float:
        """Return the start level of returning tenants: the smallest waiting counter, else the last dequeued
        one's.
        """
        waiting = [account.served for account in self if account.num_waiting]
        if waiting:
            return min(waiting)
        return self._last_queued.served if self._last_queued is not None else 0.0

    def _forget_idle(self) -> None:
        if len(self._accounts) >= MAX_ACCOUNTS:
            level = self._level() - self.burst
            for account in list(self):
                if not account.active and account.served <= level:
                    del self._accounts[account.tenant]
