"""The error of messages that do not follow a contract."""


class ContractError(ValueError):
    """A message that breaks a contract. The text names the field and what was expected."""
