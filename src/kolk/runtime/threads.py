"""Threads, injected: the few places that need one are given this, so that tests can do without."""

import threading
from collections.abc import Callable


def start_thread(run: Callable[[], None], name: str = "kolk") -> threading.Thread:
    """Run in a daemon thread: it never keeps a process alive."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
