"""Whether a data folder is sound, for tests: after every step of a history, a kill -9, a restore.

It reads the files as a crash at this very moment would leave them, so the database may be open, as long as nobody
writes to it meanwhile. ``kolk doctor`` says the same in other words.
"""

from pathlib import Path

from kolk.engine.examination import Examination, examined


def check_sound(folder: Path) -> Examination:
    """Raise AssertionError, with all that was found, unless everything holds that must always hold."""
    found = examined(folder)
    texts = [f"{fault.law.value}: {fault.found}" for fault in found.found]
    assert not texts, "\n".join([f"{folder} is not sound:", *texts])
    return found
