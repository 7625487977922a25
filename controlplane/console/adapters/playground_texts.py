"""Texts of the playground's script, which only the browser knows when to show."""

from __future__ import annotations

from django.utils.translation import gettext as _


def texts(*, gateway: str) -> dict[str, str]:
    """Return the texts by their names in `frontend/js/playground/`; `{name}` is filled in there."""
    return _of_answers() | _of_entries() | _of_errors(gateway)


def _of_answers() -> dict[str, str]:
    return {
        "waiting": _("waiting…"),
        "stopped": _("stopped"),
        "length": _("cut at the token limit"),
        "tokens": _("{in} in · {out} out"),
        "tokensCached": _("{in} in, {cached} of them cached · {out} out"),
        "costTitle": _("By the prices of today"),
        "costOpen": _("{low} to {high}, by the backend that answered"),
        "unpriced": _("no price"),
        "unpricedTitle": _("No price in your price book: the usage is recorded, its cost is unknown."),
        "costUnknown": _("cost not told"),
        "costUnknownTitle": _("The prices could not be read; the usage page will have the cost."),
        "served": _("served by {model}"),
        "json": _("valid JSON"),
        "notJson": _("not valid JSON"),
        "call": _("calls {name}"),
        "result": _("Result of {name}"),
        "sendResults": _("Send results"),
        "resultsSent": _("results sent"),
        "announceSent": _("Sent to {count} models"),
        "announceDone": _("{model} has answered"),
        "announceCalls": _("{model} asks for the results of its calls"),
        "announceError": _("{model} failed"),
        "answeredAll": _("All models have answered"),
    }  # fmt: skip


def _of_entries() -> dict[str, str]:
    return {
        "remove": _("Remove {model}"),
        "viewCode": _("View code of {model}"),
        "most": _("Four models at most: remove one first."),
        "twice": _("{model} is there already."),
        "none": _("Add a model first."),
        "resultsFirst": _("Enter the results of the calls first: {model} waits for them."),
        "badJson": _("This is not JSON: {reason}"),
        "schemaObject": _("A JSON schema is an object, such as {\"type\": \"object\", \"properties\": {…}}."),
        "schemaAt": _("{path}: {reason}"),
        "schemaType": _("type must be one of {types}"),
        "schemaProperties": _("properties must be an object of schemas"),
        "schemaRequired": _("required must be a list of names that are among the properties"),
        "schemaItems": _("items must be a schema"),
        "schemaEnum": _("enum must be a list with at least one value"),
        "toolsList": _("Tools are a list of {\"type\": \"function\", \"function\": {\"name\": …}}."),
        "toolName": _("Tool {n} needs a name of letters, digits, _ and - (64 at most)."),
        "toolTwice": _("Two tools are called {name}."),
        "choiceNeedsTools": _("Enter at least one tool, or choose “auto”."),
        "number": _("Enter a number from {low} to {high}, or leave it empty."),
        "whole": _("Enter a whole number from {low} to {high}, or leave it empty."),
    }  # fmt: skip


def _of_errors(gateway: str) -> dict[str, str]:
    unreachable = _(
        "The gateway at %(gateway)s cannot be reached from this browser. Is it running, and does it allow"
        " this page's origin?"
    )
    return {
        "unreachable": unreachable % {"gateway": gateway},
        "noKey": _("No key could be issued for the playground. Reload the page and log in again."),
        "broken": _("The answer broke off before its end."),
        "hintModel": _("Remove it and add another, or register it:"),
        "hintBudget": _("Nothing is sent until the budget is raised or its period ends:"),
        "hintRate": _("Wait {seconds} s and try again, or have the limit raised:"),
        "hintRateNow": _("Wait a moment and try again, or have the limit raised:"),
        "hintTooLarge": _("Trying again does not help: send less, or lower the longest answer."),
        "hintParam": _("Change {param} in the settings, then try again."),
        "hintRetry": _("Nothing is wrong with the request: try again in {seconds} s."),
        "hintScope": _("The playground's key may not do this: ask who administers your tenant."),
        "linkAdapters": _("your adapters"),
        "linkLimits": _("limits and budgets"),
    }
