"""Reading snapshots, whatever becomes of the scan: what it shows does not change, so a new one goes on where it was.

A scan of living rows that is lost has lost its moment. One of snapshots has only lost its session: it is opened again,
on the very same snapshots, at the token of the last page. If they are gone it says so.
"""

from dataclasses import replace

from kolk.client.resume import LOSSES_MAX
from kolk.client.service import ScanPages, Service
from kolk.errors import UnknownOrExpiredScan
from kolk.model.ids import TableId
from kolk.model.scan import ScanEnd, ScanPage, ScanRequest


class KeptPages:
    """See ``ScanPages``. Confined to one reader at a time; ``close`` may come from anywhere."""

    def __init__(self, service: Service, table: TableId, request: ScanRequest) -> None:
        self._service = service
        self._table = table
        self._pages: ScanPages = service.open_scan(table, request)
        self._request = replace(request.resolved(self._pages.pins, self._pages.offsets), nonce="")
        self._token = request.resume
        self._losses = 0
        self.id = self._pages.id
        self.offsets = dict(self._pages.offsets)
        self.schema = self._pages.schema
        self.estimate = self._pages.estimate
        self.resumed = self._pages.resumed
        self.pins = self._pages.pins
        self.is_consistent = self._pages.is_consistent
        self.starts = self._pages.starts

    def next(self) -> ScanPage | None:
        """See ``ScanPages``."""
        while True:
            try:
                page = self._pages.next()
            except UnknownOrExpiredScan as lost:
                self._losses += 1
                if lost.reason == ScanEnd.CLOSED.value or self._losses > LOSSES_MAX:
                    raise  # somebody wanted it to end
                self._pages = self._service.open_scan(self._table, replace(self._request, resume=self._token))
                self.id = self._pages.id
                continue
            if page is not None:
                self._token, self._losses = page.token, 0  # it came on, so it may be lost as often again
            return page

    def close(self) -> None:
        """See ``ScanPages``."""
        self._pages.close()
