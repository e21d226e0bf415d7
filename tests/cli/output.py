"""What commands write, as values."""

import json


def lines(text):
    """The value of each line of JSON."""
    return [json.loads(line) for line in text.splitlines()]
