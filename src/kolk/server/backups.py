"""The requests about backups: only where the operator has named a folder for them, and by who may alter every table.

A client names a folder within that one, by one word that obeys the rule for names: it chooses no path. A backup holds
all rows of all tables, so to read some is not enough.
"""

from pathlib import Path

from kolk.engine.database import Engine
from kolk.errors import InvalidArgument, PermissionDenied
from kolk.model.backup import BackupState
from kolk.model.grant import Operation, Principal
from kolk.model.names import check_name
from kolk.wire import keeping as k


class BackupRequests:
    """Backups of clients, made by an engine. Thread-safe."""

    def __init__(self, engine: Engine, folder: str | None) -> None:
        self._engine = engine
        self._folder = folder

    def act(self, principal: Principal, action: k.AboutBackups) -> BackupState | None:
        """Serve a request."""
        folder = self._checked(principal)
        if isinstance(action, k.CancelBackup):
            return self._engine.backups.cancel(action.nonce)
        return self._engine.backups.advance(folder / check_name(action.name, "backup"), action.nonce, principal.name)

    def _checked(self, principal: Principal) -> Path:
        """Where backups are made, for who may make them."""
        if not all(principal.may(Operation.ALTER, info.name) for info in self._engine.tables()):
            raise PermissionDenied(f"{principal.name} may not alter every table, and a backup holds them all")
        if self._folder is None:
            raise InvalidArgument(
                "this server has no place for backups: start it with --set server.backup_folder=FOLDER; or stop it, and"
                " run `kolk backup` with its folder"
            )
        return Path(self._folder)
