"""Events of the service, and the features that listen to them."""

from __future__ import annotations

from tornado_idv.service.events import Event, Events


class Recorder:
    def __init__(self, interval: float | None = None) -> None:
        self.interval = interval
        self.events: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)


def test_each_listener_gets_each_event() -> None:
    recorders = [Recorder(), Recorder()]
    events = Events(recorders)
    events.send("ready")
    events.send("stopping")
    assert [each.events for each in recorders] == [["ready", "stopping"]] * 2


def test_interval_is_the_shortest_of_the_listeners() -> None:
    assert Events([Recorder(), Recorder(2.0), Recorder(1.0)]).interval == 1.0
    assert Events([Recorder()]).interval is None
