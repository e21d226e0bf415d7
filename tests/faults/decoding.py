"""A process that feeds damaged messages to what serves requests, without a network between: most of them, at speed.

Run as ``python -m tests.faults.decoding FOLDER SEED MESSAGES HEADS``. It prints how often each error was the answer;
whatever is no typed error stops it. It is a process of its own because what is tested here are crashes.
"""

import faulthandler
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
from tests.faults.mutations import Mutations
from tests.faults.targets import SCAN_SECONDS, Targets

from kolk.client.database import Database
from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.errors import InternalError, KolkError
from kolk.model.grant import EVERYONE
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.server.api import SIGN_OF_LIFE, Api
from kolk.server.scanning import Answered
from kolk.server.watch import Served
from kolk.testing.clock import ManualClock
from kolk.wire import messages as m
from kolk.wire import owners as o
from kolk.wire import transactions as t
from kolk.wire.rows import encode_rows


class Server:
    """What a transport does with bytes that came."""

    def __init__(self, engine: Engine) -> None:
        self._api = Api(engine, dict)

    def call(self, message: bytes) -> None:
        """Serve a message of an exchange."""
        head, rows = m.split(pa.py_buffer(message))
        call = m.decode_call(head)
        match call:
            case m.Get():
                encode_rows(self._api.get(EVERYONE, call, rows, Served("Get", 0.0)))
            case m.Put() | t.Stage() | o.PutOwned():
                self._api.write(EVERYONE, call, rows, Served("Put", 0.0))
            case m.OpenScan():
                _encoded(self._api.scanning.open(EVERYONE, call)[1])
            case m.NextPage():
                _encoded(self._api.scanning.next_page(EVERYONE, call)[1])

    def shared_scan(self, table: int) -> tuple[str, str]:
        """A scan that whoever asks may read, and the token of its first row."""
        asked = m.OpenScan(table=table, page_bytes=1, shared=True, ttl_seconds=SCAN_SECONDS)
        record, _ = self._api.scanning.open(EVERYONE, asked)[1]
        assert isinstance(record, m.ScanRecord)
        part, _ = self._api.scanning.next_page(EVERYONE, m.NextPage(record.scan, "first", 0, 1))[1]
        assert isinstance(part, m.ScanPart)
        return record.scan, part.token

    def act(self, body: bytes) -> None:
        """Serve an action."""
        msgspec.msgpack.encode(self._api.act(EVERYONE, m.decode_action(body), Served("Action", 0.0)))

    def stream(self, ticket: bytes) -> None:
        """Serve a ticket: what comes before the first wait."""
        _, schema, pages = self._api.stream(EVERYONE, m.decode_ticket(ticket))
        try:
            for place, (batch, page) in enumerate(pages):
                assert batch.schema.equals(schema)
                m.encode(page)
                if place == 2 or (place and page is SIGN_OF_LIFE):
                    break
        finally:
            pages.close()


def _encoded(answer: Answered) -> None:
    """As the transport would send it."""
    m.encode(answer[0])
    if answer[1] is not None:
        encode_rows(answer[1])


def feed(serve: Callable[[bytes], None], draw: Callable[[], bytes], count: int, answers: Counter[str]) -> None:
    """Serve so many damaged requests."""
    for _ in range(count):
        request = draw()
        try:
            serve(request)
            answers["served"] += 1
        except Exception as error:
            if isinstance(error, InternalError) or not isinstance(error, KolkError):
                print(f"the request was {request!r}", file=sys.stderr)
                raise
            answers[type(error).__name__] += 1


def check_foreign(server: Server, targets: Targets) -> None:
    """The scan that these targets have is of this process, and of nobody who calls: to him it is not there."""
    page = m.NextPage(scan=targets.scan, cursor="c", seq=0, page_bytes=1, token=targets.token)
    for serve, request in (
        (server.act, m.encode(m.JoinScan(scan=targets.scan))),
        (server.call, m.join(page).to_pybytes()),
        (server.stream, m.encode(m.ReadScan(scan=targets.scan, token=targets.token))),
    ):
        answers = Counter[str]()
        feed(serve, lambda request=request: request, 1, answers)
        assert answers == {"UnknownOrExpiredScan": 1}, answers


def main() -> None:
    faulthandler.enable()
    folder, seed, messages, heads = sys.argv[1:]
    clock, many = ManualClock(), 10**6  # time stands still, so no scan ends by itself
    config = EngineConfig(durability="process", scans_max=many, scans_per_bucket_max=many, scan_views_max=many)
    engine = Engine(Folder(Path(folder), OsDisk()), config, clock=clock)
    with Database(engine, engine.close, Rng()) as db:
        server, answers = Server(engine), Counter[str]()
        targets = Targets.make(db)
        check_foreign(server, targets)
        scan, token = server.shared_scan(targets.rows)
        targets = replace(targets, scan=scan, token=token)
        feed(server.call, Mutations(int(seed), targets.messages()).message, int(messages), answers)
        feed(server.act, Mutations(int(seed), targets.actions()).head, int(heads), answers)
        # A stream that waits for changes does so for a second, so there are fewer of them.
        feed(server.stream, Mutations(int(seed), targets.tickets()).head, int(heads) // 4, answers)
        Targets.make(db)
        assert db.table("rows").get(targets.keys).num_rows == targets.keys.num_rows
        clock.advance(seconds=config.scan_ttl_seconds_max + 1)
        left = engine.scans.sessions.counts()
        assert (left.open, left.views) == (0, 0), f"scans are left behind: {left}"
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
