"""The requests about snapshots and leases.

As in ``api``: who may, what came, then the engine. A lease belongs to the principal that began it, not to a connection;
whoever goes on with it must still be allowed to read its tables. To let go of one's own is always allowed; to end that
of somebody else takes the right to alter every table that it keeps.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from kolk.engine.database import Engine
from kolk.errors import Corrupted, LeaseLost
from kolk.model.grant import Operation, Principal
from kolk.model.lease import LeaseInfo
from kolk.model.names import TableName
from kolk.model.table import TableInfo
from kolk.server.watch import Served
from kolk.wire import keeping as k

Allowed = Callable[[Principal, int, Operation], TableInfo]


class KeepingRequests:
    """Snapshots and leases of clients, served by an engine. Thread-safe."""

    def __init__(self, engine: Engine, allowed: Allowed) -> None:
        self._engine = engine
        self._allowed = allowed

    def act(self, principal: Principal, action: k.AboutSnapshots | k.AboutLeases, served: Served) -> Any:
        """Serve a request."""
        match action:
            case k.TakeSnapshot():
                info = self._allowed(principal, action.table, Operation.READ)
                served.table = str(info.name)
                return self._engine.take_snapshot(info.id)
            case k.ListSnapshots():
                return self._engine.snapshots(self._allowed(principal, action.table, Operation.DESCRIBE).id)
            case _:
                return self._lease(principal, action)

    def _lease(self, principal: Principal, action: k.AboutLeases) -> Any:
        keeping, name = self._engine.keeping, principal.name
        match action:
            case k.AcquireLease():
                wanted = [
                    (self._allowed(principal, each.table, Operation.READ), each.snapshots) for each in action.tables
                ]
                holder = int.from_bytes(action.holder)
                return keeping.acquire(action.lease, holder, wanted, action.ttl_seconds, name, action.generation)
            case k.JoinLease():
                self._check_readable(principal, action.lease)
                return keeping.join(action.lease, int.from_bytes(action.holder), name, action.ttl_seconds)
            case k.RenewLease():
                self._check_readable(principal, action.lease)
                return keeping.renew(action.lease, action.generation, name, action.ttl_seconds)
            case k.ReleaseLease():
                return keeping.release(action.lease, action.generation, name, action.buckets)
            case k.DropLease():
                return self._drop(principal, action)
            case k.GetLease():
                with suppress(LeaseLost):
                    found = keeping.lease(action.lease)
                    if self._may(principal, found.tables, Operation.DESCRIBE):
                        return found
                return keeping.lease(action.lease, name)
            case k.ListLeases():
                return [each for each in keeping.leases() if self._sees(principal, each)]

    def _drop(self, principal: Principal, action: k.DropLease) -> bool:
        """End a lease: one's own, or that of tables which one may alter."""
        keeping = self._engine.keeping
        if keeping.drop(action.lease, action.generation, principal.name):
            return True
        if action.generation is not None:
            return False
        try:
            found = keeping.lease(action.lease)
        except LeaseLost:
            return False
        except Corrupted:
            # One that cannot be read keeps nobody knows what: only who may alter everything ends it.
            return self._may_all(principal, Operation.ALTER) and keeping.drop(action.lease)
        return self._may(principal, found.tables, Operation.ALTER) and keeping.drop(action.lease)

    def _check_readable(self, principal: Principal, id: str) -> None:
        """Whoever goes on with his lease must still be allowed to read its tables."""
        try:
            found = self._engine.keeping.lease(id)
        except (LeaseLost, Corrupted):
            return  # told by the engine, which knows why
        if found.principal == principal.name:
            for each in found.tables.values():
                self._allowed(principal, each.table, Operation.READ)

    def _may(self, principal: Principal, tables: Iterable[str], operation: Operation) -> bool:
        """Whether somebody may do this to all of these tables. Those that are just being dropped are nobody's."""
        names = {str(info.name) for info in self._engine.tables()}
        return all(principal.may(operation, TableName.parse(name)) for name in tables if name in names)

    def _may_all(self, principal: Principal, operation: Operation) -> bool:
        return all(principal.may(operation, info.name) for info in self._engine.tables())

    def _sees(self, principal: Principal, lease: LeaseInfo) -> bool:
        """Whether a lease shows to somebody: his own, and those of tables that he sees. Of one that cannot be read
        nobody knows either."""
        if not lease.is_readable:
            return self._may_all(principal, Operation.DESCRIBE)
        return lease.principal == principal.name or self._may(principal, lease.tables, Operation.DESCRIBE)
