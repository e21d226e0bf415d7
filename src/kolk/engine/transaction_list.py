"""Transactions for those who look at them: what is staged, by whom, and what every application has committed last."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from kolk.engine.commits import Commits
from kolk.engine.stagings import Stagings
from kolk.model.ids import TableId
from kolk.model.transaction import Seal, Staging, TransactionInfo


def listed(
    commits: Commits, stagings: Stagings, names: Mapping[TableId, str], problems: Mapping[int, str]
) -> list[TransactionInfo]:
    """All of them, by application and version. ``problems`` are why commits are pending, by their numbers."""
    found = [
        TransactionInfo(
            app=record.app,
            version=record.version,
            tables=tuple(names.get(table, str(table)) for table in record.tables),
            state="done" if record.is_done else "pending",
            rows=record.rows,
            timestamp_ms=record.timestamp_ms,
            problem="" if record.is_done else problems.get(record.csn, ""),
        )
        for record in commits.all()
    ]
    named = commits.named()
    waiting = [each for each in stagings.listed() if each[0].handle not in named]
    return sorted([*found, *_staged(waiting, names)], key=lambda one: (one.app, one.version, one.state))


def _staged(waiting: list[tuple[Staging, Seal, bool]], names: Mapping[TableId, str]) -> Iterator[TransactionInfo]:
    def kind(each: tuple[Staging, Seal, bool]) -> tuple[str, int, bool, str]:
        return each[0].app, each[0].version, each[2], each[0].principal

    for (app, version, is_sealed, principal), group in groupby(sorted(waiting, key=kind), key=kind):
        alike = list(group)
        yield TransactionInfo(
            app=app,
            version=version,
            tables=tuple(sorted({names.get(staging.table, str(staging.table)) for staging, _, _ in alike})),
            state="sealed" if is_sealed else "staging",
            rows=sum(seal.rows for _, seal, _ in alike),
            bytes=sum(seal.bytes for _, seal, _ in alike),
            handles=tuple(staging.handle for staging, _, _ in alike),
            principal=principal,
        )
