"""Events of the service, and the features that listen to them."""

from tornado_idv.service.events import Event, Events


class Recorder:
    def __init__(self, interval: float | None = None) -> None:
        self.interval = interval
        self.events: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)


def test_each_listener_gets_each_event_and_the_shortest_interval_counts() -> None:
    recorders = [Recorder(), Recorder(2.0), Recorder(1.0)]
    events = Events(recorders)
    events.send("ready")
    events.send("stopping")
    assert [each.events for each in recorders] == [["ready", "stopping"]] * 3
    assert (events.interval, Events([Recorder()]).interval) == (1.0, None)
