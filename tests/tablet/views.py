"""Reading a view to its end, as nobody but a test does at once."""

from kolk.storage.view import View


def read(view: View, rows: int = 1_000) -> list[dict]:
    """All rows, page by page."""
    found, key = [], b""
    while len((taken := view.take(key, rows)).all):
        found += view.codec.decode(taken.values).to_pylist()
        key = view.used(taken, len(taken.values))
    return found
