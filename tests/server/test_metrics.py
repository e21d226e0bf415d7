"""Metrics: what is counted under which name, and that no label makes the answer endless."""

import threading
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kolk.errors import Closed
from kolk.model.lease import LeaseCounts
from kolk.model.owner import Claim, OwnerCounts
from kolk.model.page import BucketOffsets
from kolk.model.scan import ScanCounts
from kolk.model.snapshot import SnapshotCounts
from kolk.server.metrics import ALL_BUCKETS, BUCKETS_MAX, OTHER, TABLES_MAX, Metrics

KEPT = ("kolk_snapshot", "kolk_lease")


@pytest.fixture
def metrics():
    return Metrics(version="1.2.3")


def samples(metrics) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and its labels' values in the order of their names."""
    return read(metrics.render())


def served_samples(server) -> dict[tuple[str, ...], float]:
    """The same of a running server."""
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=30) as answer:
        return read(answer.read())


def read(text: bytes) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text.decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_calls_are_counted_by_method_and_outcome(metrics):
    metrics.called("get", "ok", 0.002)
    metrics.called("get", "ok", 0.2)
    metrics.called("get", "TableNotFound", 0.002)

    found = samples(metrics)

    assert found["kolk_calls_total", "get", "ok"] == 2
    assert found["kolk_calls_total", "get", "TableNotFound"] == 1
    assert found["kolk_call_seconds_count", "get"] == 3
    assert found["kolk_call_seconds_bucket", "0.0025", "get"] == 2


def test_what_moves_is_counted_by_table(metrics):
    metrics.put("web.pages", rows=10, size_bytes=1_000, seconds=0.5, wait_seconds=0.1)
    metrics.put("web.pages", rows=5, size_bytes=500, seconds=0.5)
    metrics.got("web.pages", keys=3)
    metrics.scanned("web.pages", rows=7, size_bytes=70)
    metrics.followed("web.pages", rows=4)

    found = samples(metrics)

    counted = {name[0]: value for name, value in found.items() if name[1:] == ("web.pages",)}
    assert counted == {
        "kolk_put_rows_total": 15,
        "kolk_put_bytes_total": 1_500,
        "kolk_get_keys_total": 3,
        "kolk_scan_rows_total": 7,
        "kolk_scan_bytes_total": 70,
        "kolk_changelog_rows_total": 4,
    }
    assert found["kolk_put_seconds_count",] == 2
    assert found["kolk_put_seconds_sum",] == 1
    assert found["kolk_put_wait_seconds_sum",] == pytest.approx(0.1)


def test_refusals_are_counted_by_their_reason(metrics):
    metrics.busy("streams")
    metrics.auth_failed("unauthenticated")
    metrics.auth_failed("denied")

    found = samples(metrics)

    assert found["kolk_busy_total", "streams"] == 1
    assert found["kolk_auth_failures_total", "unauthenticated"] == 1
    assert found["kolk_auth_failures_total", "denied"] == 1


def test_a_stream_is_open_until_it_ends_or_fails(metrics):
    with metrics.stream("scan"), metrics.stream("scan"), metrics.stream("changelog"):
        assert samples(metrics)["kolk_streams_open", "scan"] == 2
    with pytest.raises(ValueError, match="broken"), metrics.stream("scan"):
        raise ValueError("broken")

    assert samples(metrics)["kolk_streams_open", "scan"] == 0
    assert samples(metrics)["kolk_streams_open", "changelog"] == 0


def test_the_disk_the_version_and_the_process_are_there(metrics):
    metrics.disk_used(0.25)

    found = samples(metrics)

    assert found["kolk_disk_used_ratio",] == 0.25
    assert found["kolk_build_info", "1.2.3"] == 1
    assert found["process_resident_memory_bytes",] > 0
    assert found["process_open_fds",] > 0
    assert ("python_gc_collections_total", "0") in found


def test_two_servers_in_one_process_do_not_mix(metrics):
    other = Metrics(version="1.2.3")

    other.busy("streams")

    assert ("kolk_busy_total", "streams") not in samples(metrics)


def test_tables_after_too_many_are_counted_together(metrics):
    for number in range(TABLES_MAX + 50):
        metrics.got(f"t{number}", keys=1)
    metrics.got("t0", keys=1)

    found = {name[1]: value for name, value in samples(metrics).items() if name[0] == "kolk_get_keys_total"}

    assert len(found) == TABLES_MAX + 1
    assert found["t0"] == 2
    assert found[OTHER] == 50


def test_a_dropped_table_is_gone_and_gives_its_place_to_another(metrics):
    for number in range(TABLES_MAX):
        metrics.put(f"t{number}", rows=1, size_bytes=1, seconds=1)

    metrics.forget("t0")
    metrics.forget("nowhere")
    metrics.got("new", keys=1)

    assert not [name for name in samples(metrics) if name[1:] == ("t0",)]
    assert samples(metrics)["kolk_get_keys_total", "new"] == 1


def test_made_up_methods_do_not_make_the_answer_endless(metrics):
    for number in range(10_000):
        metrics.called(f"method{number}", f"outcome{number}", 0.1)
        metrics.busy(f"reason{number}")
        metrics.auth_failed(f"reason{number}")
        with metrics.stream(f"kind{number}"):
            pass

    assert len(metrics.render()) < 200_000
    assert samples(metrics)["kolk_calls_total", OTHER, OTHER] > 9_000


def test_a_label_cannot_break_out_of_its_line(metrics):
    metrics.got('a"} 1\nkolk_fake_total{x="\\', keys=1)

    assert [name for name in samples(metrics) if name[0] == "kolk_get_keys_total"] == [
        ("kolk_get_keys_total", 'a"} 1\nkolk_fake_total{x="\\')
    ]
    assert not [name for name in samples(metrics) if name[0] == "kolk_fake_total"]


def test_offsets_are_asked_for_when_somebody_looks():
    buckets = [BucketOffsets("web.pages", "0", 5, 10), BucketOffsets("web.pages", "1", 0, 7)]
    metrics = Metrics(version="1", offsets=lambda: iter(buckets))
    assert samples(metrics)["kolk_log_end_offset", "1", "web.pages"] == 7

    buckets[1] = BucketOffsets("web.pages", "1", 0, 8)

    assert samples(metrics)["kolk_log_end_offset", "1", "web.pages"] == 8
    assert samples(metrics)["kolk_log_start_offset", "0", "web.pages"] == 5


def test_scans_are_counted_when_somebody_looks():
    counts = [ScanCounts(open=3, views=12, opened=90, expired=4, revoked=2, refused=1, rows=5, size_bytes=6)]
    metrics = Metrics(version="1", scans=lambda: counts[-1])
    before = samples(metrics)

    counts.append(replace(counts[0], open=0, views=0, expired=7))
    after = samples(metrics)

    of_scans = {name[0] for name in before if name[0].startswith("kolk_scan")}
    assert {name: (before[name,], after[name,]) for name in of_scans} == {
        "kolk_scans_open": (3, 0),
        "kolk_scan_views": (12, 0),
        "kolk_scans_opened_total": (90, 90),
        "kolk_scans_expired_total": (4, 7),
        "kolk_scans_revoked_total": (2, 2),
        "kolk_scans_refused_total": (1, 1),
    }


def test_snapshots_and_leases_are_counted_when_somebody_looks():
    snapshots = [
        SnapshotCounts(taken=0, failed=1, removed=0, copied_bytes=0, last_seconds=None, oldest_age_seconds=None),
        SnapshotCounts(
            taken=7, failed=1, removed=5, copied_bytes=99, last_seconds=0.5, oldest_age_seconds=60.0, broken=2
        ),
    ]
    leases = LeaseCounts(
        leases=3,
        unreadable=1,
        pins=12,
        expired=4,
        unavailable=5,
        renew_failures=6,
        oldest_age_seconds=30.0,
        pinned_bytes=1_000,
    )
    metrics = Metrics(version="1", snapshots=lambda: snapshots[0], leases=lambda: leases)
    before = kept(samples(metrics))

    snapshots.pop(0)
    after = kept(samples(metrics))

    assert before["kolk_snapshots_failed_total"] == 1
    assert after.keys() - before.keys() == {"kolk_snapshot_last_seconds", "kolk_snapshot_age_seconds"}
    assert after == {
        "kolk_snapshots_taken_total": 7,
        "kolk_snapshots_failed_total": 1,
        "kolk_snapshots_removed_total": 5,
        "kolk_snapshot_copied_bytes_total": 99,
        "kolk_snapshots_broken": 2,
        "kolk_snapshot_last_seconds": 0.5,
        "kolk_snapshot_age_seconds": 60,
        "kolk_leases_active": 3,
        "kolk_leases_unreadable": 1,
        "kolk_lease_pins": 12,
        "kolk_lease_pinned_bytes": 1_000,
        "kolk_lease_oldest_age_seconds": 30,
        "kolk_leases_expired_total": 4,
        "kolk_lease_unavailable_total": 5,
        "kolk_lease_renew_failures_total": 6,
    }


def test_owners_are_counted_when_somebody_looks():
    counts = OwnerCounts(
        locks=4,
        live=3,
        dirty=2,
        abandoned=1,
        begun=9,
        committed=80,
        conflicts=5,
        evicted=1,
        fenced=6,
        undone_rows=70,
        undo_seconds=0.5,
    )
    found = samples(Metrics(version="1", owners=lambda: counts))

    about = ("kolk_lock", "kolk_owner", "kolk_fenced", "kolk_undo")
    assert {name: value for (name, *_), value in found.items() if name.startswith(about)} == {
        "kolk_locks": 4,
        "kolk_locks_live": 3,
        "kolk_owners_dirty": 2,
        "kolk_owners_abandoned": 1,
        "kolk_owners_begun_total": 9,
        "kolk_owner_commits_total": 80,
        "kolk_owner_conflicts_total": 5,
        "kolk_owners_evicted_total": 1,
        "kolk_fenced_puts_total": 6,
        "kolk_undo_rows_total": 70,
        "kolk_undo_seconds_total": 0.5,
    }


def kept(found):
    """Of the samples those of snapshots and leases, none of which has a label."""
    return {name: value for name, *labels in found for value in [found[name, *labels]] if name.startswith(KEPT)}


def test_the_offsets_of_too_many_buckets_are_added_up_by_table():
    buckets = [BucketOffsets("a", str(number), 1, 2) for number in range(BUCKETS_MAX)]
    metrics = Metrics(version="1", offsets=lambda: [*buckets, BucketOffsets("b", "0", 3, 4)])

    found = {name[1:]: value for name, value in samples(metrics).items() if name[0] == "kolk_log_end_offset"}

    assert found == {(ALL_BUCKETS, "a"): 2 * BUCKETS_MAX, (ALL_BUCKETS, "b"): 4}


def test_the_offsets_of_too_many_tables_are_added_up_as_others():
    buckets = [BucketOffsets(f"t{number}", "0", 0, 1) for number in range(TABLES_MAX + 7)]
    metrics = Metrics(version="1", offsets=lambda: buckets)

    found = {name[1:]: value for name, value in samples(metrics).items() if name[0] == "kolk_log_end_offset"}

    assert len(found) == TABLES_MAX + 1
    assert found[ALL_BUCKETS, OTHER] == 7


def test_a_database_that_is_closed_does_not_take_the_other_figures_along():
    def closed():
        raise Closed("the database is closed")

    metrics = Metrics(version="1", offsets=closed)
    metrics.busy("streams")

    assert samples(metrics)["kolk_busy_total", "streams"] == 1


def test_counts_from_many_threads_add_up(metrics):
    def work():
        for _ in range(500):
            metrics.put("t", rows=1, size_bytes=2, seconds=0.1)
            metrics.render() if _ == 250 else None

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert samples(metrics)["kolk_put_rows_total", "t"] == 2_000


def test_a_server_shows_the_scans_that_are_open_now(serve, connect, schema):
    server = serve(http_port=0)
    table = connect(server).create_table("t", schema, buckets=2)
    table.put([{"id": number, "v": ""} for number in range(100)])

    with table.scan(shared=True):
        during = served_samples(server)
    after = served_samples(server)

    assert (during["kolk_scans_open",], during["kolk_scan_views",]) == (1, 2)
    assert (after["kolk_scans_open",], after["kolk_scan_views",]) == (0, 0)
    assert after["kolk_scans_opened_total",] == 1


def test_a_server_shows_the_snapshots_and_what_leases_keep_of_them(serve, connect, schema):
    server = serve(http_port=0)
    table = connect(server).create_table("t", schema, buckets=2)
    table.put([{"id": number, "v": ""} for number in range(100)])
    none = served_samples(server)

    with table.lease(), table.lease():
        during = served_samples(server)
    after = served_samples(server)

    assert ("kolk_snapshot_last_seconds",) not in none
    assert (during["kolk_leases_active",], during["kolk_lease_pins",]) == (2, 4)
    assert during["kolk_lease_pinned_bytes",] == during["kolk_snapshot_copied_bytes_total",] > 0
    assert (after["kolk_leases_active",], after["kolk_lease_pinned_bytes",]) == (0, 0)
    assert after["kolk_snapshots_taken_total",] == 2


def test_a_server_shows_who_holds_columns(serve, connect, schema):
    server = serve(http_port=0)
    table = connect(server).create_table("t", schema, buckets=2)

    server._engine.begin_owner(table.info.id, Claim(owner="a", columns=["v"], ttl_seconds=30.0))
    found = served_samples(server)

    assert (found["kolk_locks",], found["kolk_locks_live",], found["kolk_owners_begun_total",]) == (1, 1, 1)
