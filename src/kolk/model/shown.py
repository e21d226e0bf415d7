"""Values that make no sense, as an error shows them: in one line, and whatever they are."""

_LENGTH_MAX = 60


def shown(value: object) -> str:
    """What Python writes for it, not at length. Of numbers with thousands of digits it refuses to write any."""
    try:
        text = repr(value)
    except ValueError:
        return f"an {type(value).__name__} of too many digits"
    return text if len(text) <= _LENGTH_MAX else f"{text[: _LENGTH_MAX - 3]}..."
