"""Scans that are lost and go on: one moment in the end, every change once."""

import pytest
from tests.spec.scanned import SCHEMA, rows

import kolk
from kolk.client.changelog import Changelog
from kolk.errors import Closed, InvalidArgument, PartitionDropped, TableNotFound, Unreachable

DAYS = kolk.Schema(
    [kolk.Column("day", "int"), kolk.Column("id", "bigint"), kolk.Column("v", "string")], primary_key=["day", "id"]
)
pytestmark = pytest.mark.usefixtures("by_pages")


@pytest.fixture
def table(small):
    table = small.db.create_table("t", SCHEMA, buckets=3)
    table.put(rows(range(60), v="old"))
    return table


def shake(table):
    """Change rows all over the table: some are updated, some go, some come."""
    table.put(rows(range(0, 60, 4), v="new", n=1))
    table.delete([{"id": n} for n in range(1, 60, 4)])
    table.put(rows(range(60, 80), v="new", n=1))


def state(rows):
    return {row["id"]: row for row in rows}


class Losing:
    """A progress that ends its own scan, after so many pages, and changes the table meanwhile."""

    def __init__(self, database, table, at):
        self.database, self.table, self.at, self.pages = database, table, set(at), 0

    def __call__(self, rows, estimate):
        self.pages += 1
        unread = [info for info in self.database.db.scans() if not info.is_drained]
        if self.pages in self.at and unread:
            shake(self.table)
            for info in unread:
                assert self.database.db.close_scan(info.id)


@pytest.mark.parametrize("at", [[1], [3], [9], [1, 2, 3], [2, 6, 7, 12]], ids=str)
@pytest.mark.parametrize(
    "query",
    [{}, {"columns": ["v"]}, {"where": "n = 1"}, {"where": "n = 0", "columns": ["v", "id"]}, {"limit": 30}],
    ids=str,
)
def test_a_scan_that_is_lost_is_mended_from_the_changelog(small, table, at, query):
    """N12, N13: the whole result is of one moment, the last; its offsets say which."""
    losing = Losing(small, table, at)
    scan = table.scan(resume="log", on_progress=losing, **query)

    found = scan.to_arrow()

    assert small.db.status()["scans"]["open"] == 0
    with table.scan(**query) as now:
        expected = now.to_arrow()
        assert scan.offsets == now.offsets
    assert found.schema == expected.schema
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))


def test_a_mended_scan_is_read_as_a_whole_only(table):
    with pytest.raises(InvalidArgument, match="whole result"):
        list(table.scan(resume="log"))


def test_what_was_read_is_not_forgotten_when_mending_fails(small, table, monkeypatch):
    """N18: a second call goes on with it. It must never look as if the rest were all."""
    losing = Losing(small, table, [4])
    scan = table.scan(resume="log", on_progress=losing)

    def unreachable(*arguments):
        raise Unreachable("the server is being restarted")

    with monkeypatch.context() as patched:
        patched.setattr(table._service, "open_scan", unreachable)
        for _ in range(2):
            with pytest.raises(Unreachable):
                scan.to_arrow()

    assert state(scan.to_arrow().to_pylist()) == state(table.scan().to_arrow().to_pylist())


def test_a_scan_whose_table_is_gone_cannot_be_mended(small, table):
    scan = table.scan(resume="log", on_progress=lambda rows, estimate: rows == 4 and small.db.drop_table("t"))

    for _ in range(2):
        with pytest.raises(TableNotFound):
            scan.to_arrow()


def test_a_scan_that_was_closed_is_not_opened_again(table):
    scan = table.scan(resume="log")
    scan.close()

    with pytest.raises(Closed):
        scan.to_arrow()


@pytest.mark.parametrize("at", [[2], [1, 4]], ids=str)
def test_a_partition_that_goes_has_no_rows_in_a_mended_scan(small, at):
    """N19: one that was made anew under its name is read anew."""
    table = small.db.create_table("days", DAYS, partition_by=["day"])
    for day in (1, 2, 3):
        table.put([{"day": day, "id": n, "v": "old"} for n in range(8)])
    pages = []

    def progress(rows, estimate):
        pages.append(rows)
        if len(pages) in at:
            table.drop_partition(day=1 if len(pages) == at[0] else 3)
            table.put([{"day": 2, "id": n, "v": "new"} for n in range(4)])
            if len(at) == 2 and len(pages) == at[0]:
                table.put([{"day": 1, "id": 99, "v": "anew"}])
            for info in small.db.scans():
                small.db.close_scan(info.id)

    found = table.scan(resume="log", on_progress=progress).to_arrow().to_pylist()

    assert sorted(map(str, found)) == sorted(map(str, table.scan().to_arrow().to_pylist()))


# --- bootstrap


class Replica:
    """A copy of the table by what a bootstrap hands out; each step is checked."""

    def __init__(self):
        self.rows = {}

    def apply(self, batch):
        for change in batch.to_pylist():
            row = {name: value for name, value in change.items() if not name.startswith("_")}
            key = (row.get("day"), row["id"])
            kind = change["_change_type"]
            if kind == "+I":
                assert key not in self.rows, "handed out twice"
                self.rows[key] = row
            elif kind == "+U":
                assert key in self.rows
                self.rows[key] = row
            else:
                assert self.rows[key] == row
                if kind == "-D":
                    del self.rows[key]

    def read(self, batches):
        for batch in batches:
            self.apply(batch)

    def drop(self, event):
        if event.kind == "dropped":
            self.rows = {key: row for key, row in self.rows.items() if f"day={key[0]}" != event.partition}

    def equals(self, table):
        return sorted(map(str, self.rows.values())) == sorted(map(str, table.scan().to_arrow().to_pylist()))


def test_a_bootstrap_is_the_table_and_every_change_after_it(table):
    """N10: the offsets of the scan are where the changelog goes on."""
    replica, bootstrap = Replica(), table.bootstrap(follow=False)
    shake(table)
    replica.read(bootstrap)

    assert bootstrap.is_scanned
    assert replica.equals(table)
    shake(table)
    replica.read(table.changelog(start=bootstrap.offsets))
    assert replica.equals(table)


@pytest.mark.parametrize("at", [[1], [3], [9], [1, 2, 3], [2, 6, 7, 12]], ids=str)
def test_a_bootstrap_whose_scan_is_lost_goes_on_by_itself(small, table, at):
    """N12: no gap and no duplicate, at every step."""
    replica, losing = Replica(), Losing(small, table, at)
    replica.read(table.bootstrap(follow=False, on_progress=losing))

    assert replica.equals(table)


def test_a_bootstrap_that_is_interrupted_while_it_mends_misses_nothing(small, table, monkeypatch):
    """N12: the changes of which some were handed out go on where they were."""
    replica, losing = Replica(), Losing(small, table, [12])
    read, failures = Changelog.__iter__, []

    def breaking(log):
        for n, batch in enumerate(read(log)):
            yield batch
            if n == 0 and len(failures) < 2:
                failures.append(n)
                raise Unreachable("the connection broke")

    monkeypatch.setattr(Changelog, "__iter__", breaking)
    bootstrap = table.bootstrap(follow=False, on_progress=losing)
    for _ in range(2):
        with pytest.raises(Unreachable, match="broke"):
            replica.read(bootstrap)
    replica.read(bootstrap)

    assert replica.equals(table)


def test_a_progress_that_fails_loses_no_row_of_a_bootstrap(table):
    """N18."""
    replica, told = Replica(), []

    def progress(rows, estimate):
        told.append(rows)
        if len(told) == 3:
            raise ZeroDivisionError

    bootstrap = table.bootstrap(follow=False, on_progress=progress)
    with pytest.raises(ZeroDivisionError):
        replica.read(bootstrap)
    replica.read(bootstrap)

    assert replica.equals(table)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_partition_that_goes_while_a_bootstrap_is_lost_is_told(small, is_told):
    """N19: by the callback, or by an error after which the iteration goes on."""
    table = small.db.create_table("days", DAYS, partition_by=["day"])
    for day in (1, 2, 3):
        table.put([{"day": day, "id": n, "v": "old"} for n in range(8)])
    replica, pages, dropped = Replica(), [], []

    def progress(rows, estimate):
        pages.append(rows)
        if len(pages) == 5:
            table.put([{"day": 1, "id": 1, "v": "unread"}])
            table.drop_partition(day=1)
            table.put([{"day": 2, "id": n, "v": "new"} for n in range(8)])
            for info in small.db.scans():
                small.db.close_scan(info.id)

    bootstrap = table.bootstrap(follow=False, on_progress=progress, on_partition=replica.drop if is_told else None)
    for _ in range(3):
        try:
            replica.read(bootstrap)
        except PartitionDropped as error:
            dropped.append(error.partition)
            replica.rows = {key: row for key, row in replica.rows.items() if f"day={key[0]}" != error.partition}
        else:
            break

    assert dropped == ([] if is_told else ["day=1"])
    assert replica.equals(table)


def test_a_partition_that_goes_before_a_bootstrap_has_read_it_is_told(small):
    """Its changes were all read, there were none; but its rows were not."""
    schema = kolk.Schema(
        [kolk.Column("day", "int"), kolk.Column("id", "int"), kolk.Column("v", "string")], ["day", "id"]
    )
    table = small.db.create_table("p", schema, partition_by=["day"])
    for day in (1, 2, 3):
        table.put([{"day": day, "id": n, "v": "old"} for n in range(8)])
    replica, dropped = Replica(), []
    bootstrap = table.bootstrap(
        follow=False, on_progress=lambda *_: dropped or table.drop_partition(day=3, if_exists=True)
    )

    with pytest.raises(PartitionDropped) as told:
        replica.read(bootstrap)
    dropped.append(told.value.partition)
    replica.rows = {key: row for key, row in replica.rows.items() if key[0] != 3}
    replica.read(bootstrap)

    assert dropped == ["day=3"]
    assert replica.equals(table)


def test_a_bootstrap_that_is_closed_ends_its_scan(small, table):
    with table.bootstrap() as bootstrap:
        next(iter(bootstrap))
        assert small.db.status()["scans"]["open"] == 1

    assert small.db.status()["scans"]["open"] == 0
    with pytest.raises(Closed):
        next(iter(bootstrap))
