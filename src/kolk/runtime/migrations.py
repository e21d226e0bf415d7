"""How an older data folder becomes one of the present format: a step from each format to the next, done in order.

A step is a function of the folder and the disk. It is done while the folder's lock is held and before anything else is
opened, so nobody else looks on. The file ``FORMAT`` is replaced last, after each step: a crash leaves the old number,
and the step is done again when the folder is next opened. So a step must be able to find its own work half done or
done; until ``FORMAT`` says so it may do nothing that an older Kolk could not open.

There is no way back. An older Kolk refuses a folder whose number it does not know, before it reads anything else;
whoever may want to go back keeps a copy.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from kolk.runtime.disk import Disk

Migration = Callable[[Path, Disk], None]
FORMAT = 2
"""The format that this version writes, and the newest that it reads."""
FORMAT_FILE = "FORMAT"


def _buckets_follow(_path: Path, _disk: Disk) -> None:
    """1 to 2, which has snapshots of buckets and counts of their rows.

    There is nothing to do here: a bucket has its log, which tells all of it, so it brings itself up to date when it is
    next opened, whenever that is. Only the number must change, so that a Kolk that knows no snapshots stays away.
    """


MIGRATIONS: Mapping[int, Migration] = {1: _buckets_follow}
"""The step that leads away from each older format."""


def migrate(path: Path, disk: Disk, found: int, steps: Mapping[int, Migration] = MIGRATIONS) -> None:
    """Bring a folder of the format ``found``, which is locked, up to that of this version."""
    for number in range(found, FORMAT):
        steps[number](path, disk)
        write_format(path, disk, number + 1)


def write_format(path: Path, disk: Disk, number: int = FORMAT) -> None:
    """Say which format a folder has; durably, and the old number or the new one at any moment."""
    disk.replace(str(path / FORMAT_FILE), f"kolk {number}\n".encode())
