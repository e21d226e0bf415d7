"""kill -9 of a server at every step of what an owner asks of it, and of the owner's process at the same steps.

A server that dies is started again at its address, and its clients go on by themselves: who was in the middle of a
call, and who was not. A writer that dies leaves the server with the call half done; another one begins in its name. In
the end the table is that of one clean run, and so is what its changelog makes.
"""

import signal

from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.owner_points import WRITES, named, points
from tests.faults.owner_server_worker import serve, work
from tests.faults.owner_witness import check_clean, check_recovery, go_on
from tests.faults.owner_worker import OWNED
from tests.faults.processes import Process, Serving
from tests.faults.servers import PATIENCE_SECONDS

import kolk
from kolk.testing.faults import Step

FRAMES = (Step.HALF_APPEND, Step.AFTER_APPEND)
"""The others leave the same behind; ``test_owner_kill`` has them."""
ALL = [point for action in WRITES if action != "evict" for point in points(action, FRAMES)]  # nobody's time is up here
OF_SERVERS = [
    ("recover", Step.HALF_APPEND, 4),
    ("change columns", Step.AFTER_RECORD, 2),
    ("resume", Step.AFTER_RECORD, 2),
    ("write", Step.AFTER_APPEND, 5),
    ("commit", Step.AFTER_RECORD, 1),
    ("rest", Step.HALF_APPEND, 2),
    ("release", Step.AFTER_RECORD, 3),
    ("work together", Step.AFTER_APPEND, 7),
    ("begin tasks", Step.AFTER_RECORD, 2),
    ("try tasks again", Step.HALF_APPEND, 7),
    ("seal tasks", Step.AFTER_APPEND, 2),
    ("commit tasks", Step.AFTER_APPEND, 1),
]
OF_WRITERS = [
    ("recover", Step.AFTER_APPEND, 3),
    ("write", Step.AFTER_APPEND, 2),
    ("commit", Step.BEFORE_RECORD, 1),
    ("release", Step.AFTER_RECORD, 1),
    ("try tasks again", Step.AFTER_APPEND, 5),
    ("commit tasks", Step.BEFORE_RECORD, 1),
]


@named(ALL if IS_FULL else OF_SERVERS)
def test_a_writer_goes_on_when_its_server_dies_in_the_middle_of_a_call(owners, owned, action, step, occurrence):
    report = owned.with_name("report")
    with Serving(serve, owned) as server, Process(work, server.url, action) as writer:
        assert writer.said() == "ready"
        server.ask((step, occurrence, report, None))
        writer.pipe.send("go")
        assert server.end() == -signal.SIGKILL, f"it was done, and never was {step.value} {occurrence}"
        assert report.read_text() == f"{step.value}\n"
        with Serving(serve, owned, server.url), kolk.connect(server.url, timeout=PATIENCE_SECONDS) as db:
            refused = writer.said()
            assert writer.end() == 0
            assert refused == "" or "tasks" in action
            if action != "work together":
                go_on(owners[1]["b"], db._link.service)
            check_clean(db, db._link.service)
    write_figures("kill -9 of a server at a step of an owner", times=1, lost=0, duplicated=0)


@named([point for point in ALL if point[1] is not Step.HALF_APPEND] if IS_FULL else OF_WRITERS)
def test_a_writer_that_dies_in_the_middle_of_a_call_is_taken_back_to_its_commit(
    owners, owned, action, step, occurrence
):
    report = owned.with_name("report")
    with Serving(serve, owned) as server, Process(work, server.url, action) as writer:
        assert writer.said() == "ready"
        server.ask((step, occurrence, report, writer.pid))
        writer.pipe.send("go")
        assert writer.end() == -signal.SIGKILL
        assert report.read_text() == f"{step.value}\n"
        with kolk.connect(server.url, timeout=PATIENCE_SECONDS) as db:
            if action == "work together":
                check_recovery(db, db._link.service, *OWNED)
            else:
                go_on(owners[1]["b"], db._link.service)
                check_recovery(db, db._link.service, "a")
    write_figures("kill -9 of a writer at a step of an owner", times=1, lost=0, duplicated=0)
