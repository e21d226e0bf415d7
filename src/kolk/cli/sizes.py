"""Sizes as people read them: ``20.3 kB``, in steps of a thousand."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP = 1_000


def size_text(size: float) -> str:
    """A number of bytes for people."""
    unit = _UNITS[0]
    for unit in _UNITS:
        if size < _STEP or unit == _UNITS[-1]:
            break
        size /= _STEP
    return f"{size:,.0f} {unit}" if unit == _UNITS[0] else f"{size:,.1f} {unit}"
