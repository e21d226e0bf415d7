"""What a streaming query keeps from being deleted: the log that it has yet to read, and the snapshots it begins with.

The log is held by a *follower*, in a name of the query's own, which is written in its offsets; the snapshots by a
*lease*, which is renewed as long as the query runs and let go once they are read and committed. Both are listed
(``db.followers()``, ``db.leases()``) and end by themselves when nobody comes back to them, so a query that is deleted
leaves nothing for ever.

Neither says where the query is: its checkpoint does. So a follower that somebody dropped is made anew, as long as the
log is there. And a table that has no room for another one does not keep a query from running: it goes on without, says
so, and tries again; a log that is trimmed before it is read is an error in any case.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress

from kolk.client.database import Database
from kolk.client.lease import Lease
from kolk.client.table import Table
from kolk.errors import FollowerNotFound, HolderLost, KolkError, LeaseLost, OffsetOutOfRange, TooManyFollowers
from kolk.model.follower import Follower, FollowerState
from kolk.model.partition import PARTITIONS
from kolk.spark.offsets import Position
from kolk.spark.slices import log_lost, snapshot_lost

PREFIX = "spark-"
"""Of the names of followers that nobody has named."""
_IDLE_SECONDS = 30.0
"""Spark may write a moment later that a batch is done; by then it has."""
_SIGN_SECONDS = 600.0
"""A query that has nothing to read says so often that it is there: far less than a follower lives. As often it asks
again for a follower that there was no room for."""
_SHOWN_MAX = 5
_log = logging.getLogger(__name__)


class Holding:
    """What one query holds. Confined to the process, and the thread, in which Spark asks where the stream is."""

    def __init__(self, database: Database, table: Table, ttl_seconds: float) -> None:
        self._database = database
        self._table = table
        self._ttl_seconds = ttl_seconds
        self._lease: Lease | None = None
        self._session: tuple[str, int] | None = None
        self._last_sign = 0.0
        self._refused_at: float | None = None
        self._waiting: tuple[Position, float] | None = None
        self._moved: Position | None = None

    def leased(self) -> Lease:
        """A new lease on the newest snapshots, renewed from now on."""
        self._lease = self._table.lease(ttl=self._ttl_seconds)
        return self._lease

    def take(self, position: Position) -> None:
        """Hold what is to be read from a position on: join its lease, and go on as its follower."""
        if position.unread:
            self._join(position.lease)
        if (self._session is None or self._session[0] != position.follower) and not self._is_without:
            self._follow(position)

    def move(self, position: Position, others: Mapping[str, int]) -> None:
        """A batch that ends here is committed: what was before it is not needed any more. ``others`` are buckets that
        the query does not read, so that it holds nothing of them."""
        if position.lease and not position.unread:
            self._release(position.lease)
        if position.is_scanned:
            self._tell(position, {**others, **position.log})
        self._moved = position

    def wait(self, position: Position, others: Mapping[str, int]) -> None:
        """There is nothing to read here. Spark says that a batch is committed when it begins the next one, and for now
        there is none: after a while without any, nobody will read the last one again. Later on it is enough to say now
        and then that the query is there."""
        now = self._table.link.clock.monotonic()
        if self._waiting is None or self._waiting[0] != position:
            self._waiting = position, now
        elif now - self._waiting[1] >= _IDLE_SECONDS and self._moved != position:
            self.move(position, others)
        elif now - self._last_sign >= _SIGN_SECONDS:
            self._tell(position, {})

    def close(self) -> None:
        """The query ends, and may come back: leave everything to it for as long as it lasts."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.detach()

    # --- the lease

    def _join(self, id: str) -> None:
        try:
            if self._lease is None or self._lease.id != id:
                self._lease = self._database.join_lease(id, self._ttl_seconds)
            self._lease.check()
        except LeaseLost as error:
            raise snapshot_lost(f"the lease {id!r}", error) from error

    def _release(self, id: str) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and lease.id == id:
            lease.close()
        else:
            self._database.drop_lease(id)

    # --- the follower

    def _follow(self, position: Position) -> None:
        """Go on as the query's follower. One that is further than the query, or has lost what it held, is of no use and
        made anew."""
        service, info = self._table.link.service, self._table.info
        known = self._known(position.follower)
        if known is not None and not _holds(known, position):
            with suppress(FollowerNotFound):
                service.drop_follower(info.id, position.follower)
            known = None
        if known is None:
            self._sweep()
        starts = None if known is not None else dict(position.log)
        try:
            session = service.open_follower(info.id, position.follower, self._table.link.rng.id128(), starts)
        except OffsetOutOfRange as error:
            raise log_lost(error) from error
        except TooManyFollowers as error:
            if not position.follower.startswith(PREFIX):
                raise  # somebody counts on that name
            self._go_without(error)
            return
        self._session = position.follower, session.epoch
        self._last_sign = self._table.link.clock.monotonic()

    def _go_without(self, error: TooManyFollowers) -> None:
        """Read without a follower for a while, and tell whoever looks after the table what to do."""
        self._session, self._refused_at = None, self._table.link.clock.monotonic()
        unnamed = [each for each in self._of_table() if each.name.startswith(PREFIX)]
        idle = sorted(unnamed, key=lambda each: each.last_use)[:_SHOWN_MAX]
        _log.warning(
            "%s. Nothing holds the log for this query: if it is down for long, changes may be trimmed that it has not"
            " read, and it will fail. The queries without a name that were idle for longest are %s; drop those that"
            " nobody will start again, with db.drop_follower(%r, NAME) or `kolk follower drop %s NAME`",
            error,
            ", ".join(f"{each.name} (since {each.last_use:%Y-%m-%d %H:%M} UTC)" for each in idle) or "none",
            self._table.name,
            self._table.name,
        )

    @property
    def _is_without(self) -> bool:
        """Whether there was no room for a follower a while ago."""
        at = self._refused_at
        return at is not None and self._table.link.clock.monotonic() - at < _SIGN_SECONDS

    def _tell(self, position: Position, offsets: Mapping[str, int]) -> None:
        self.take(position)
        if self._session is None:
            return
        service, info = self._table.link.service, self._table.info
        try:
            service.commit_follower(info.id, *self._session, offsets)
        except FollowerNotFound:  # an operator has dropped it; the query still needs its log
            self._follow(position)
        except HolderLost:
            pass  # if it concerns what is yet to be read, that is told when it is asked for
        self._last_sign = self._table.link.clock.monotonic()

    def _known(self, name: str) -> Follower | None:
        mine = (each for each in self._of_table() if each.name == name)
        return next(mine, None)

    def _of_table(self) -> list[Follower]:
        return [each for each in self._database.followers() if each.table == self._table.name]

    def _sweep(self) -> None:
        """Forget what queries left behind that nobody has named and nobody came back to: each is a record, and there is
        room for so many."""
        for each in self._of_table():
            if each.name.startswith(PREFIX) and each.state in (FollowerState.EXPIRED, FollowerState.LOST):
                with suppress(KolkError):
                    self._database.drop_follower(self._table.name, each.name)


def _holds(follower: Follower, position: Position) -> bool:
    """Whether a follower holds all that is read from a position on."""
    if follower.state is FollowerState.LOST or follower.offsets.get(PARTITIONS, 0) > position.place:
        return False
    return all(follower.offsets.get(name, 0) <= at for name, at in position.log.items())
