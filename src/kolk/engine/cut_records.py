"""Which snapshots of a table are of one moment, written down, so that it is known after a restart.

Meta records: ``snapshot-cut/<table id>``, of the newest such moment; none if the newest snapshots are not of one.
"""

import logging
from collections.abc import Mapping

from kolk.codec.cut import decode_cut, encode_cut
from kolk.engine.catalog import Catalog
from kolk.errors import Corrupted
from kolk.model.ids import BucketId, TableId
from kolk.storage.meta import Meta, MetaChange

_PREFIX = "snapshot-cut/"
_log = logging.getLogger(__name__)


class CutRecords:
    """The newest cuts of all tables. Thread-safe as meta is; of one table one writes at a time."""

    def __init__(self, meta: Meta, catalog: Catalog) -> None:
        self._meta = meta
        self._catalog = catalog

    def of(self, table: TableId) -> dict[BucketId, int]:
        """The snapshots of the newest cut of a table; none if there is no such cut."""
        record = self._meta.get(cut_key(table))
        try:
            return {} if record is None else decode_cut(table, record.value)
        except Corrupted as error:  # the snapshots are none the worse for it, and the next ones make a new one
            _log.warning("%s", error)
            return {}

    def record(self, table: TableId, cut: Mapping[BucketId, int] | None) -> None:
        """Write down which snapshots are of one moment; None if the newest are not."""
        if cut is None or cut != self.of(table):
            change = self._meta.replacement(cut_key(table), None if cut is None else encode_cut(dict(cut)))
            if cut is not None:
                self._catalog.by_id(table)
            if cut is not None or change.expected:
                self._meta.write([change])

    def forget_dropped(self) -> None:
        """What a crash left of tables that were dropped."""
        tables = {cut_key(info.id) for info in self._catalog.list()}
        gone = [record for record in self._meta.list(_PREFIX) if record.key not in tables]
        if gone:
            self._meta.write([MetaChange(record.key, None, record.version) for record in gone])


def cut_key(table: TableId) -> str:
    """The key of the record of a table's newest cut."""
    return f"{_PREFIX}{table:012}"
