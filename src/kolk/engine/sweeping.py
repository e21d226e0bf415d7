"""What a crash leaves of dropped tables and partitions is removed at the next start."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from kolk.errors import Corrupted
from kolk.model.ids import TableId
from kolk.model.partition import Layout
from kolk.runtime.disk import Disk


def sweep(disk: Disk, folder: Path, known: Mapping[TableId, Layout | None], next_table: int) -> None:
    """Remove the files of what was dropped from ``folder/<table id>/<partition id>``.

    ``known`` holds the tables and the layouts of those that have partitions. Files of a table or partition that the
    catalog has never heard of mean that the catalog is not the one they belong to.
    """
    disk.make_folder(str(folder))
    found = _numbers(disk, folder)
    _check_known(folder, "table", found, next_table)
    for number in found:
        table, path = TableId(number), folder / str(number)
        if table not in known:
            disk.remove_tree(str(path))
            continue
        layout = known[table]
        if layout is not None:
            partitions = _numbers(disk, path)
            _check_known(path, "partition", partitions, layout.position)
            for partition in partitions - {each.id for each in layout.partitions.values()}:
                disk.remove_tree(str(path / str(partition)))


def _numbers(disk: Disk, folder: Path) -> set[int]:
    return {int(name) for name in disk.list(str(folder)) if name.isascii() and name.isdigit()}


def _check_known(folder: Path, what: str, found: Iterable[int], following: int) -> None:
    strange = sorted(number for number in found if number >= following)
    if strange:
        raise Corrupted(
            f"{folder} has files of {what} {strange[0]}, which the catalog does not know: the catalog is gone or"
            " older than its tables. Nothing was changed; restore meta.sqlite from a backup"
        )
