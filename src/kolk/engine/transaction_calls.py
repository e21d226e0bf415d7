"""The calls about transactions that an engine serves in its own process; each goes to who does it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from kolk.engine.transactions import Transactions
from kolk.model.transaction import CommitRequest, CommitResult, Seal, Staging, TransactionInfo


class TransactionCalls(ABC):
    """A part of ``Engine``."""

    transactions: Transactions

    @abstractmethod
    def check_usable(self) -> None:
        """Whether anything can be asked of the engine."""

    def stage(self, staging: Staging, number: int, rows: pa.RecordBatch) -> None:
        """Keep rows for a commit."""
        self.check_usable()
        self.transactions.stage(staging, number, rows)

    def keep_staged(self, staging: Staging) -> None:
        """Let the time of a handle begin anew."""
        self.check_usable()
        self.transactions.keep(staging)

    def seal(self, staging: Staging, batches: int) -> Seal:
        """Make what was staged under a handle durable."""
        self.check_usable()
        return self.transactions.seal(staging, batches)

    def commit_transaction(self, request: CommitRequest) -> CommitResult:
        """Apply what was staged, once."""
        self.check_usable()
        return self.transactions.commit(request, "")

    def discard(self, handles: Sequence[str]) -> int:
        """Forget what was staged."""
        self.check_usable()
        return self.transactions.discard(handles)

    def list_transactions(self) -> list[TransactionInfo]:
        """What is staged, and what every application has committed last."""
        self.check_usable()
        return self.transactions.listed()
