"""A database in the middle of whose own steps something else happens: before it writes a record, or frames."""

from contextlib import contextmanager

from tests.spec.owned import Rack

import kolk
from kolk.engine.database import Engine
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.storage.meta import Meta


class Moments:
    """What is to happen once, when the next write of a kind is about to be done, in the thread that does it."""

    def __init__(self):
        self._next = {}

    def at_record(self, call):
        self._next["record"] = call

    def at_frames(self, call):
        self._next["frames"] = call

    def reached(self, kind):
        call = self._next.pop(kind, None)
        if call is not None:
            call()


class MomentRack(Rack):
    """A ``Rack`` with such moments."""

    def __init__(self, folder, **settings):
        self.moments = Moments()
        super().__init__(folder, **settings)

    def _open(self):
        self.engine = Engine(
            Folder(self._folder),
            kolk.EngineConfig(**self._settings),
            clock=self.clock,
            disk=_Disk(self.moments),
            open_meta=lambda path: _Meta(path, self.moments),
        )
        self.db = kolk.Database(self.engine, lambda: None, Rng(), clock=self.clock)


@contextmanager
def open_moments(folder, **settings):
    rack = MomentRack(folder, **settings)
    try:
        yield rack
    finally:
        rack.close()


class _Meta(Meta):
    def __init__(self, path, moments):
        super().__init__(path)
        self._moments = moments

    def write(self, changes):
        self._moments.reached("record")
        super().write(changes)


class _Disk(OsDisk):
    def __init__(self, moments):
        self._moments = moments

    def open_append(self, path):
        file = super().open_append(path)
        return _File(file, self._moments) if "/log/" in path else file


class _File:
    def __init__(self, file, moments):
        self._file = file
        self._moments = moments

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, parts):
        self._moments.reached("frames")
        self._file.write(parts)
