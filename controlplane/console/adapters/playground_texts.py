"""Texts of the playground's script, which only the browser knows when to show."""

from __future__ import annotations

from django.utils.translation import gettext as _


def texts(*, gateway: str) -> dict[str, str]:
    """Return the texts by their names in `frontend/js/playground/`; `{name}` is filled in there."""
    return _of_answers() | _of_entries() | _of_images() | _of_errors(gateway)


def _of_answers() -> dict[str, str]:
    return {
        "waiting": _("waiting…"),
        "stopped": _("stopped"),
        "length": _("stopped at the token limit"),
        "tokens": _("{in} in · {out} out"),
        "tokensCached": _("{in} in, {cached} cached · {out} out"),
        "thought": _("Reasoning"),
        "thoughtTokens": _("Reasoning · {tokens} tokens"),
        "costTitle": _("At today's prices"),
        "costOpen": _("{low} to {high}, depending on the backend"),
        "unpriced": _("no price"),
        "unpricedTitle": _("No price in your price book. The usage is recorded without a cost."),
        "costUnknown": _("cost unknown"),
        "costUnknownTitle": _("Prices could not be loaded. The usage page shows the cost."),
        "served": _("served by {model}"),
        "json": _("valid JSON"),
        "notJson": _("not valid JSON"),
        "call": _("calls {name}"),
        "result": _("Result of {name}"),
        "sendResults": _("Send results"),
        "resultsSent": _("results sent"),
        "announceSent": _("Sent to {count} models"),
        "announceDone": _("{model} has responded"),
        "announceCalls": _("{model} is waiting for the results of its calls"),
        "announceError": _("{model} failed"),
        "answeredAll": _("All models have responded"),
    }


def _of_entries() -> dict[str, str]:
    return {
        "remove": _("Remove {model}"),
        "viewCode": _("View code of {model}"),
        "most": _("At most four models. Remove one first."),
        "twice": _("{model} is already added."),
        "none": _("Add a model first."),
        "resultsFirst": _("Enter the results of the calls first. {model} is waiting for them."),
        "badJson": _("This is not JSON: {reason}"),
        "schemaObject": _('A JSON schema is an object, such as {"type": "object", "properties": {…}}.'),
        "schemaAt": _("{path}: {reason}"),
        "schemaType": _("type must be one of {types}"),
        "schemaProperties": _("properties must be an object of schemas"),
        "schemaRequired": _("required must be a list of names that are among the properties"),
        "schemaItems": _("items must be a schema"),
        "schemaEnum": _("enum must be a list with at least one value"),
        "toolsList": _('Tools are a list of {"type": "function", "function": {"name": …}}.'),
        "toolName": _("Tool {n} needs a name of letters, digits, _ and - (64 at most)."),
        "toolTwice": _("Two tools are called {name}."),
        "choiceNeedsTools": _("Enter at least one tool, or choose “auto”."),
        "number": _("Enter a number from {low} to {high}, or leave it empty."),
        "whole": _("Enter a whole number from {low} to {high}, or leave it empty."),
    }


def _of_images() -> dict[str, str]:
    return {
        "oneImage": _("1 image"),
        "images": _("{count} images"),
        "removeImage": _("Remove {name}"),
        "imageAdded": _("{name} attached"),
        "imageRemoved": _("{name} removed"),
        "imageType": _("{name} is not a PNG, JPEG, WebP or GIF image."),
        "imageSide": _("{name} has {width} × {height} pixels. A side may have at most {most}."),
        "imageMost": _("At most {most} images in a conversation. Remove one, or clear the conversation."),
        "imagePixels": _(
            "The conversation's images have more than {most} pixels together. Use smaller ones."
        ),
        "imageReading": _("An image is still being read. Try again in a moment."),
        "textOnly": _(
            "{model} reads no images. The gateway refuses the message unless a fallback model reads them."
        ),
        "bodySize": _(
            "The conversation with its images has {size} MiB. The gateway accepts 2 MiB unless its operator"
            " allows more."
        ),
    }


def _of_errors(gateway: str) -> dict[str, str]:
    unreachable = _(
        "The gateway at %(gateway)s cannot be reached from this browser. Is it running, and does it allow"
        " this page's origin?"
    )
    return {
        "unreachable": unreachable % {"gateway": gateway},
        "noKey": _("No key could be issued for the playground. Reload the page and log in again."),
        "broken": _("The response ended unexpectedly."),
        "hintModel": _("Remove it and add another model, or register it:"),
        "hintBudget": _("Requests are rejected until the budget is raised or its period ends:"),
        "hintRate": _("Wait {seconds} s and try again, or have the limit raised:"),
        "hintRateNow": _("Wait a moment and try again, or have the limit raised:"),
        "hintTooLarge": _("Trying again does not help. Send a shorter prompt, or lower Max tokens."),
        "hintImages": _("Remove this model, or send the message without images."),
        "hintParam": _("Change {param} in the settings, then try again."),
        "hintRetry": _("The request is valid. Try again in {seconds} s."),
        "hintScope": _("The playground's key does not have permission. Contact an admin of your tenant."),
        "linkAdapters": _("your adapters"),
        "linkLimits": _("limits and budgets"),
    }
