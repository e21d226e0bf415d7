"""What a notebook shows of an object: what it is of and how far it has come. The server is not asked for it."""

import asyncio

import kolk

ROW = {"page": "/", "pv": 1, "title": None}


def test_a_database_shows_where_it_is_also_after_its_end(db, url, folder):
    place = url or folder.resolve()

    assert repr(db) == f"<kolk.Database {place}>"
    db.close()
    assert repr(db) == f"<kolk.Database {place}, closed>"


def test_a_scan_shows_its_table_and_how_many_rows_were_read(pages):
    pages.put(ROW)
    scan = pages.scan()

    assert repr(scan).startswith("<kolk.Scan of web.pages, 0 rows read")
    scan.to_arrow()
    assert repr(scan).startswith("<kolk.Scan of web.pages, 1 rows read")
    scan.close()
    assert repr(scan).endswith(", closed>")


def test_a_changelog_shows_its_place(pages):
    pages.put(ROW)
    changelog = pages.changelog(buckets=["0", "1", "2", "3"])

    assert repr(changelog) == "<kolk.Changelog of web.pages at {0: 0, 1: 0, 2: 0, 3: 0}>"
    assert len(list(changelog)) == 1
    changelog.close()
    assert repr(changelog).count(": 1") == 1
    assert repr(changelog).endswith("}, closed>")


def test_a_bootstrap_shows_whether_it_scans_or_follows(pages):
    pages.put(ROW)
    bootstrap = pages.bootstrap(follow=False)

    assert repr(bootstrap) == "<kolk.Bootstrap of web.pages, 0 rows scanned, scanning>"
    list(bootstrap)
    bootstrap.close()
    assert repr(bootstrap) == "<kolk.Bootstrap of web.pages, 1 rows scanned, following the changelog, closed>"


def test_a_transaction_shows_what_became_of_it(db, pages):
    tx = db.transaction("job", 1)
    assert repr(tx) == "<kolk.Transaction 'job' 1 of no table yet, open>"

    with tx:
        tx.put([ROW], table=pages)
    forgotten = pages.transaction("job", 2)
    forgotten.rollback()

    assert repr(tx) == "<kolk.Transaction 'job' 1 of web.pages, committed>"
    assert repr(forgotten) == "<kolk.Transaction 'job' 2 of web.pages, not committed>"


def test_a_writer_shows_its_owner_and_its_epoch_but_not_its_state(pages):
    with pages.writer("job", ["pv"]) as writer:
        writer.put([{"page": "/", "pv": 1}])
        writer.commit(user_state=b"secret")
        assert repr(writer) == "<kolk.Writer 'job' of web.pages, epoch 1>"

    assert repr(writer) == "<kolk.Writer 'job' of web.pages, epoch 1, closed>"


def test_a_lease_shows_whether_it_is_still_held(pages):
    pages.put(ROW)
    with pages.lease(lease_id="mine") as lease:
        assert repr(lease) == "<kolk.Lease mine of web.pages>"

    assert repr(lease) == "<kolk.Lease mine of web.pages, closed>"


def test_a_schema_shows_itself_as_ddl_has_it(pages):
    assert repr(pages.schema) == ("<kolk.Schema (page string NOT NULL, pv bigint, title string, PRIMARY KEY (page))>")


def test_what_asyncio_has_shows_the_same_under_its_own_names(db, pages, url, folder):
    pages.put(ROW)

    async def main():
        async with await kolk.aio.connect(url or folder) as opened:
            table = await opened.table("web.pages")
            async with (
                table.scan() as scan,
                table.changelog(buckets=["0"]) as changelog,
                table.bootstrap() as bootstrap,
                table.writer("job", ["pv"]) as writer,
                table.lease(lease_id="mine") as lease,
            ):
                tx = table.transaction("job", 1)
                await tx.rollback()
                return [repr(each) for each in (opened, table, scan, changelog, bootstrap, writer, lease, tx)]

    names = ["Database", "Table", "Scan", "Changelog", "Bootstrap", "Writer", "Lease", "Transaction"]
    starts = [shown.split()[0] for shown in asyncio.run(main())]

    assert starts == [f"<kolk.aio.Async{name}" for name in names]


def test_a_server_in_a_child_process_shows_where_it_is_and_that_it_has_ended(tmp_path):
    with kolk.start(tmp_path / "data") as server:
        assert repr(server) == f"<kolk.ServerProcess {server.url} of {tmp_path / 'data'}, pid {server.pid}>"

    assert repr(server).startswith(f"<kolk.ServerProcess {server.url} of {tmp_path / 'data'}, ended with code ")
