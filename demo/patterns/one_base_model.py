"""One base model, an adapter for each customer: `python -m demo.patterns.one_base_model`.

Two customers of the demo ask the same question. Each is answered by its own adapter, and both adapters run
on the same copy of the base model. Neither customer can call the other's adapter, and each pays for its own
tokens.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from itertools import pairwise

from graftwork import GraftworkError
from openai import NotFoundError, OpenAIError

from demo.errors import DemoError
from demo.patterns.access import arguments, ask, client_of, read_description
from demo.supervisor import Description, TenantDescription

QUESTION = "What should a visitor know about our town?"


def compare(description: Description, customer: TenantDescription, other: TenantDescription) -> None:
    """Ask the customer's adapter and another customer's, and print the customer's usage.

    Raises:
        DemoError: the other customer's adapter answered.
    """
    adapter, foreign = customer["adapters"][0], other["adapters"][0]
    print(f"{customer['name']} asks its adapter {adapter}:")
    print(f"  {ask(description, customer, adapter, QUESTION)!r}")
    print(f"{customer['name']} asks {foreign}, which belongs to {other['name']}:")
    try:
        ask(description, customer, foreign, QUESTION)
    except NotFoundError as error:
        print(f"  {error.message}")
    else:
        raise DemoError(f"{customer['name']} was answered by {foreign}, which belongs to {other['name']}")
    today = dt.datetime.now(dt.UTC).date()
    with client_of(description, customer) as client:
        report = client.usage(today, today, group_by=("adapter",))
    print(f"Usage of {customer['name']} today, without requests of the last seconds:")
    for row in report.rows:
        tokens = f"{row.prompt_tokens} prompt tokens, {row.completion_tokens} completion tokens"
        print(f"  {row.group['adapter'] or 'base model'}: {row.requests} requests, {tokens}")


def main(options: Sequence[str] | None = None) -> int:
    """Run the example; return 0, or 1 with one message after an error."""
    parser = arguments("One base model, an adapter for each customer.")
    try:
        description = read_description(parser.parse_args(options).demo)
        customers = description["tenants"]
        print(f"All customers share the base model {customers[0]['base_model']}. Question: {QUESTION}")
        for customer, other in pairwise([*customers, customers[0]]):
            print()
            compare(description, customer, other)
    except (DemoError, GraftworkError, OpenAIError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
