"""Small logs on a disk that can be told to fail, and ways to look at them."""

import errno

import pyarrow as pa
import pytest

from kolk.config import Durability
from kolk.model.ids import PlainTag
from kolk.storage.log import Log, PendingFrame
from kolk.testing.disk import Crash

FOLDER = "log"
SYNCED = f"{FOLDER}/synced"
SEEDS = range(25)
IO_ERROR = OSError(errno.EIO, "input/output error")
every_crash = pytest.mark.parametrize("mode", Crash)


def frame(seq, rows=1, *, more=False, length=20) -> PendingFrame:
    body = pa.py_buffer(bytes([seq % 251 + 1]) * length) if rows else None
    return PendingFrame(tag=PlainTag(7, seq), schema_id=1, rows=rows, body=body, timestamp_ms=1_000 + seq, more=more)


def open_log(disk, *, segment_bytes=2**20, durability=Durability.MACHINE) -> Log:
    return Log.open(disk, FOLDER, durability, segment_bytes)


def filled(disk, frames, *, sync=True, **options) -> Log:
    log = open_log(disk, **options)
    for seq in range(frames):
        log.append([frame(seq)])
        if sync:
            log.sync()
    return log


def everything(log):
    return [(found.header, found.body.to_pybytes()) for found in log.frames(log.start)]


def seqs(log):
    return [found.header.tag.seq for found in log.frames(log.start)]


def last_path(disk):
    return f"{FOLDER}/{[name for name in disk.list(FOLDER) if name.endswith('.log')][-1]}"


def set_content(disk, path, data):
    file = disk.open_append(path)
    file.truncate(0)
    file.write([data])
    file.sync()


def content(disk, path):
    return disk.read(path, 0, disk.size(path))
