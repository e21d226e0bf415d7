"""Damaged and hostile messages against a real server: it never dies, never hangs, and says by name what is wrong."""

import json
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from tests.faults.attacker import ANSWER_SECONDS, DESCRIPTOR, Attacker, end
from tests.faults.bombs import bomb_calls, bomb_heads, bomb_scans, bomb_tickets, compressed_batch
from tests.faults.campaign import IS_FULL, ROOT, write_figures
from tests.faults.mutations import Mutations, get_message, put_message
from tests.faults.servers import Server
from tests.faults.targets import MIB, Targets, unharmed
from tests.faults.worker import SMALL_FILES

import kolk
from kolk import errors
from kolk.errors import InternalError, InvalidInput, InvalidRows, KolkError, TooLarge, Unreachable
from kolk.wire import messages as m

SENT = FED = 10_000 if IS_FULL else 5_000
SEED = 20_261_121
SCAN_SECONDS = 2.0
"""What hostile clients open and leave is to be gone while the test looks on."""
DAMAGED, BOMBS = "damaged messages to a server", "bombs to a server"


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    config = replace(SMALL_FILES, scan_ttl_seconds=SCAN_SECONDS, scan_shared_ttl_seconds=SCAN_SECONDS)
    with Server(tmp_path_factory.mktemp("hostile") / "data", config) as server:
        server.start()
        yield server


@pytest.fixture
def targets(server):
    with kolk.connect(server.url) as db:
        return Targets.make(db)


def wrong_answers(answers: list[tuple[str, KolkError | None]]) -> list[str]:
    """Those that are neither a success nor an error that says what the client did wrong. TimedOut is a hang."""
    expected = (InvalidInput, errors.NotFound, errors.AlreadyExists, errors.StaleTag, errors.SchemaChanged)
    expected += (errors.OwnershipError,)
    return [f"{what}: {answer!r}"[:2_000] for what, answer in answers if answer and not isinstance(answer, expected)]


@pytest.mark.timeout(900)
def test_damaged_messages_over_the_network_are_answered_and_harm_nobody(server, targets):
    messages, actions, tickets = (
        Mutations(SEED, templates) for templates in (targets.messages(), targets.actions(), targets.tickets())
    )
    answers: list[tuple[str, KolkError | None]] = []
    with unharmed(server) as attacker:
        for place in range(SENT):
            match place % 10:
                case 0:
                    answers.append(("action", attacker.act(actions.head())))
                case 1:
                    answers.append(("ticket", attacker.stream(tickets.head(), pages=1)))
                case _:
                    answers.append(("message", attacker.call(messages.message())))

    write_figures(DAMAGED, times=len(answers), wrong=len(wrong_answers(answers)), **attacker.figures)
    assert not wrong_answers(answers), wrong_answers(answers)[:3]
    assert {type(answer) for _, answer in answers} > {type(None), InvalidRows}, "the messages are not various enough"


@pytest.mark.timeout(900)
def test_damaged_messages_are_refused_by_name_wherever_they_are_damaged(tmp_path):
    counts = [str(FED * 3 // 4), str(FED // 5)]  # messages, then actions, then a quarter as many tickets

    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.decoding", str(tmp_path / "data"), str(SEED), *counts],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr.decode()[-4_000:]
    answers = json.loads(ended.stdout)
    assert sum(answers.values()) >= FED
    write_figures(DAMAGED, times=sum(answers.values()), wrong=0)


def test_bombs_in_messages_are_refused(server, targets):
    bombs = bomb_calls(targets)
    with unharmed(server) as attacker:
        answers = [(name, attacker.call(bomb)) for name, bomb in bombs.items()]

    assert wrong_answers(answers) == []
    assert [name for name, answer in answers if answer is None] == []
    write_figures(BOMBS, times=len(answers), wrong=0, **attacker.figures)


def test_bombs_in_actions_are_refused(server):
    with unharmed(server) as attacker:
        answers = [(name, attacker.act(bomb)) for name, bomb in bomb_heads().items()]

    assert wrong_answers(answers) == []
    assert [name for name, answer in answers if answer is None] == []
    write_figures(BOMBS, times=len(answers), wrong=0, **attacker.figures)


def test_bombs_in_scans_are_refused_or_have_nothing_to_show(server, targets):
    with unharmed(server) as attacker:
        answers = [(name, attacker.call(bomb)) for name, bomb in bomb_scans(targets).items()]

    assert wrong_answers(answers) == []
    assert [name for name, answer in answers if answer is None] == ["no row", "2^63 - 1 rows"]
    write_figures(BOMBS, times=len(answers), wrong=0, **attacker.figures)


def test_bombs_in_tickets_are_refused_or_have_nothing_to_show(server, targets):
    with unharmed(server) as attacker:
        answers = [(name, attacker.stream(bomb)) for name, bomb in bomb_tickets(targets).items()]

    assert wrong_answers(answers) == []
    assert {"no bucket", "a scan of no bucket"} <= {name for name, answer in answers if answer is None}
    assert not [name for name, answer in answers if answer is None and "scan" in name and name != "a scan of no bucket"]
    write_figures(BOMBS, times=len(answers), wrong=0, **attacker.figures)


def test_a_scan_whose_first_page_fails_leaves_nothing_behind(server):
    """Its answer is an error, so nobody would know what to close."""
    columns = [kolk.Column("id", "int", nullable=False), kolk.Column("count", "int")]
    with kolk.connect(server.url) as db:
        table = db.create_table("widened", kolk.Schema(columns, ["id"]))
        asked = m.OpenScan(table=table.info.id, page_bytes=1, schema_id=table.schema.id, shared=False)
        table.widen_column("count", "bigint")
        table.put({"id": 1, "count": 2**40})
        before = db.status()["scans"]

        with Attacker(server.url) as attacker:
            answers = [attacker.call(m.join(asked).to_pybytes()) for _ in range(2 * SMALL_FILES.scans_per_bucket_max)]

        after = db.status()["scans"]
    assert {type(answer) for answer in answers} == {errors.SchemaChanged}
    assert (after["open"], after["views"]) == (before["open"], before["views"])


def test_rows_as_flight_data_are_refused_before_they_unfold(server):
    batch = compressed_batch()
    options = flight.FlightCallOptions(timeout=ANSWER_SECONDS, write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with unharmed(server, growth_bytes_max=64 * MIB) as attacker:
        writer, reader = attacker.client.do_exchange(DESCRIPTOR, options)
        writer.begin(batch.schema)
        with pytest.raises((flight.FlightError, pa.ArrowException, OSError)):
            _send_until_refused(writer, reader, batch)
        end(writer, reader)


def test_a_put_of_flight_is_refused_before_it_unfolds(server):
    batch = compressed_batch()
    options = flight.FlightCallOptions(timeout=ANSWER_SECONDS, write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    refused = pytest.raises((flight.FlightError, pa.ArrowException, OSError))
    with unharmed(server, growth_bytes_max=64 * MIB) as attacker, refused:
        _send_until_refused(*attacker.client.do_put(DESCRIPTOR, batch.schema, options), batch)


def _send_until_refused(writer, reader, batch: pa.RecordBatch) -> None:
    """A refusal is told by a write or a read, whichever notices first."""
    writer.write_batch(batch)
    writer.done_writing()
    (getattr(reader, "read_chunk", None) or reader.read)()
    writer.close()


UNSERVED = {
    "list_flights": lambda client, options: list(client.list_flights(options=options)),
    "list_actions": lambda client, options: list(client.list_actions(options=options)),
    "get_flight_info": lambda client, options: client.get_flight_info(DESCRIPTOR, options),
    "get_schema": lambda client, options: client.get_schema(DESCRIPTOR, options),
    "handshake": lambda client, options: client.authenticate_basic_token(b"me", b"secret", options),
}


@pytest.mark.parametrize("method", UNSERVED)
def test_a_method_of_flight_that_is_not_served_is_an_error_that_tells_nothing_of_the_server(server, method):
    with unharmed(server) as attacker, pytest.raises((flight.FlightError, pa.ArrowException, OSError)) as caught:
        UNSERVED[method](attacker.client, flight.FlightCallOptions(timeout=ANSWER_SECONDS))

    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["x", "é", "\U0001f600", "\n", "\0"], ids=["plain", "accent", "emoji", "lines", "NULs"]
)
def test_an_error_of_a_stream_arrives_whatever_text_is_in_it(server, targets, text):
    ticket = m.encode(m.Follow(table=targets.rows, starts={text * 3_000: 0}, stops={}))

    with Attacker(server.url) as attacker:
        answer = attacker.stream(ticket)

    assert isinstance(answer, InvalidInput), answer


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "delete", "columns": ["key"]},
        {"action": "delete", "columns": ["part", "price"]},
        {"action": "delete", "columns": []},
    ],
    ids=["a key", "a part of a key", "nothing"],
)
def test_a_partial_delete_cannot_take_the_key_from_a_row(server, targets, changes):
    with Attacker(server.url) as attacker, kolk.connect(server.url) as db:
        db.table("rows").put(targets.batch)

        answer = attacker.call(put_message(targets.rows, targets.keys, seq=1, **changes))

        assert db.table("rows").get(targets.keys).select(["key", "part"]).to_batches() == [targets.keys]
    assert isinstance(answer, InvalidInput), answer


def test_a_small_lookup_cannot_ask_for_more_than_fits_in_memory(server):
    columns = [kolk.Column("id", "int", nullable=False), kolk.Column("large", "bytes")]
    with kolk.connect(server.url) as db:
        table = db.create_table("large", kolk.Schema(columns, ["id"]))
        table.put({"id": 0, "large": bytes(1_000_000)})
    ids = pa.array([0] * 1_000, pa.int32())
    keys = pa.RecordBatch.from_arrays([ids], schema=pa.schema([table.schema.column("id").arrow]))

    with unharmed(server, growth_bytes_max=512 * MIB) as attacker:
        answer = attacker.call(get_message(table.info.id, keys))

    assert isinstance(answer, TooLarge), answer


def test_the_check_notices_an_answer_that_is_none(server):
    assert wrong_answers([("message", Unreachable("gone"))])
    assert wrong_answers([("message", InternalError("broken"))])
    assert not wrong_answers([("message", InvalidRows("no")), ("message", None)])
