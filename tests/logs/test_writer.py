"""Log lines on their way to a reader that stalls, fails, or reads."""

import threading
import time
from collections.abc import Iterator

import pytest

from tornado_idv.logs.writer import LogWriter

LINE = "a line\n"


class Reader:
    """What is at the other end: it reads, unless it is stalled or broken."""

    def __init__(self) -> None:
        self._read = b""
        self.broken = False
        self.at_once = 1_000_000
        self._reads = threading.Event()
        self._reads.set()
        self.blocked = threading.Event()

    def stall(self) -> None:
        self._reads.clear()

    def go_on(self) -> None:
        self._reads.set()

    def write(self, data: memoryview) -> int:
        self.blocked.set()
        assert self._reads.wait(20)
        if self.broken:
            raise OSError(28, "No space left on device")
        taken = data[: self.at_once]
        self._read += bytes(taken)
        return len(taken)

    @property
    def text(self) -> str:
        return self._read.decode()


def describe(lines: int) -> str:
    return f"{lines} lost\n"


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.go_on()


@pytest.fixture
def writer(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogWriter]:
    """With room for ten lines."""
    monkeypatch.setattr("tornado_idv.logs.writer._CAPACITY", 10 * len(LINE))
    writer = LogWriter(reader.write, describe)
    yield writer
    reader.go_on()
    writer.close()


def stall_with_a_line(reader: Reader, writer: LogWriter) -> None:
    reader.stall()
    writer.put(LINE)
    assert reader.blocked.wait(20)


def test_all_lines_are_written_in_order_even_after_the_close(
    reader: Reader, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall_with_a_line(reader, writer)
    for number in range(5):
        writer.put(f"{number}\n")
    with monkeypatch.context() as patch:
        patch.setattr("tornado_idv.logs.writer._FLUSH_TIMEOUT", 0)
        writer.close()
    reader.go_on()
    writer.flush()
    assert reader.text == f"{LINE}0\n1\n2\n3\n4\n"
    assert writer.dropped == 0


def test_stalled_reader_loses_lines_and_does_not_block(reader: Reader, writer: LogWriter) -> None:
    stall_with_a_line(reader, writer)
    for _ in range(5):
        writer.put(LINE * 3)
    assert writer.dropped == 6
    writer.put(LINE * 4)
    assert writer.dropped == 10


def test_lines_that_cannot_be_written_are_reported(reader: Reader, writer: LogWriter) -> None:
    """As on a full disk, or when the reader is gone."""
    reader.broken = True
    writer.put(LINE * 2)
    writer.flush()
    assert (reader.text, writer.dropped) == ("", 2)
    reader.broken = False
    writer.put(LINE)
    writer.close()
    assert reader.text == f"{LINE}2 lost\n"


def test_next_line_is_readable_after_a_write_that_failed_within_a_line() -> None:
    """As on a full disk. The report of lost lines may be lost, too: the next one includes it."""
    disk, room = bytearray(), [10, 0, 0, 100, 0, 100, 100]

    def write(data: memoryview) -> int:
        if not (taken := data[: room.pop(0)]):
            raise OSError(28, "No space left on device")
        disk.extend(taken)
        return len(taken)

    writer = LogWriter(write, describe)
    for lines in (2, 1, 1, 1):
        writer.put(LINE * lines)
        writer.flush()
    writer.close()
    assert (bytes(disk), writer.dropped) == (b"a line\na l\na line\na line\n3 lost\n", 3)


def test_nothing_is_called_while_the_lock_is_held(writer: LogWriter) -> None:
    """The garbage collector may run a finalizer there, which waits for a thread that logs."""

    def measure(text: str) -> int:
        other = threading.Thread(target=writer.put, args=[LINE], daemon=True)
        other.start()
        other.join(5)
        assert not other.is_alive()
        return str.__len__(text)

    writer.put(type("Text", (str,), {"__len__": measure})(LINE))


def test_a_close_waits_for_no_stalled_reader(reader: Reader, writer: LogWriter) -> None:
    stall_with_a_line(reader, writer)
    began = time.monotonic()
    writer.close()
    assert 0.9 < time.monotonic() - began < 5
    writer.put(LINE)
    assert writer.dropped == 1


def test_a_text_is_written_whole_however_little_is_taken_at_once(
    reader: Reader, writer: LogWriter
) -> None:
    reader.at_once = 3
    writer.put("a ü and a \ud800\n")
    writer.close()
    assert reader.text == "a ü and a \\ud800\n"


def test_only_lines_dropped_since_the_last_report_are_reported(
    reader: Reader, writer: LogWriter
) -> None:
    for lines in (11, 12):
        reader.blocked.clear()
        stall_with_a_line(reader, writer)
        writer.put(LINE * lines)
        reader.go_on()
        writer.flush()
    assert reader.text == f"{LINE}11 lost\n{LINE}12 lost\n"
    assert writer.dropped == 23


def test_thread_ends_with_the_writer(reader: Reader) -> None:
    before = set(threading.enumerate())
    writer = LogWriter(reader.write, describe)
    # Other services of this process begin threads, too.
    (thread,) = (each for each in {*threading.enumerate()} - before if each.name == "log writer")
    assert thread.daemon
    writer.close()
    thread.join(20)
    assert not thread.is_alive()


def test_tick_that_fails_does_not_end_the_writer(reader: Reader, writer: LogWriter) -> None:
    def fail() -> None:
        raise KeyError

    writer.on_tick = fail
    for _ in range(2):
        writer.put(LINE)
        writer.flush()
    assert reader.text == LINE * 2


def test_tick_comes_without_lines(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which the number of repeated events is written."""
    monkeypatch.setattr("tornado_idv.logs.writer._TICK", 0.01)
    ticks = threading.Semaphore(0)
    writer = LogWriter(reader.write, describe)
    writer.on_tick = lambda: (ticks.release(), writer.put(LINE))
    for _ in range(3):
        assert ticks.acquire(timeout=20)
    writer.close()
    assert reader.text.startswith(LINE * 2)
