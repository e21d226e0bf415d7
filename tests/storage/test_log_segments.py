"""When a log begins a new segment, and what becomes of those who read the old one."""

from tests.storage.logs import filled, frame, open_log

from kolk.storage import log as log_module
from kolk.testing.disk import LossyDisk


def test_a_read_that_is_overtaken_by_a_new_segment_finishes():
    """The segment that was the last one when the read began has grown and is sealed when the read comes to it, and its
    index is not in memory any more."""

    class OvertakingDisk(LossyDisk):
        overtake = None

        def open_reader(self, path):
            reader = super().open_reader(path)
            if self.overtake is not None:
                overtake, self.overtake = self.overtake, None
                overtake()
            return reader

    disk = OvertakingDisk()
    log = filled(disk, 20, segment_bytes=300)
    before = log.segments
    assert before[-1].size, "it has something to read, and room"
    for segment in before[:4]:
        log.read(segment.base, limit_bytes=1)
    end = log.end

    def overtake():
        while len(log.segments) == len(before):
            log.append([frame(50)])

    disk.overtake = overtake

    assert log.read(before[-2].base, until=end)[-1].header.end_offset == end


def test_a_segment_sealed_with_very_much_that_has_no_rows_is_followed_by_one_of_its_own(monkeypatch):
    monkeypatch.setattr(log_module, "ROWLESS_BYTES", 1_000)
    disk = LossyDisk()
    log = filled(disk, 1)
    for _ in range(20):
        log.append([frame(1, rows=0)])
    first = log.segments[0].size
    log.close()
    log = open_log(disk)
    for _ in range(20):
        log.append([frame(1, rows=0)])

    assert len(log.segments) == 2
    assert first <= log.segments[0].size < 1_500
    assert log.rowless_bytes > 0, "which is thinned"
