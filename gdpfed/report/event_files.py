"""Metrics as TensorBoard event files, in the run's own directory."""

import time
from contextlib import ExitStack

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from gdpfed.report.progress import metrics_of
from gdpfed.rounds.observers import Observer, RoundEnded, RunOpened

EVENTS_FOLDER = "tensorboard"


class EventFiles(Observer):
    """Writes one event file a process; TensorBoard shows those of a resumed run as one.

    They lie in the run directory, where ``tensorboard --logdir`` of it or of a folder of runs finds them.
    The library's SummaryWriter hands events to a thread, so that a killed process loses the last of
    them; its EventsWriter, used here, writes them at once.

    Args:
        cohorts: whether they show what depends on who was drawn. Without it rounds are a second apart,
            however long they took.
    """

    def __init__(self, *, cohorts: bool) -> None:
        self._cohorts = cohorts
        self._closing = ExitStack()

    def opened(self, run: RunOpened) -> None:
        """Begin a file; what an earlier process wrote beyond the completed rounds is hidden."""
        folder = run.path / EVENTS_FOLDER
        folder.mkdir(exist_ok=True)
        # Two processes that start in one second are told apart by where they begin.
        self._writer = EventsWriter(str(folder / "events"), f".{run.completed_rounds}")
        self._closing.callback(self._writer.close)
        self._opened = time.time()
        begins = Event(
            wall_time=self._opened,
            step=run.completed_rounds + 1,
            session_log=SessionLog(status=SessionLog.START),
        )
        self._writer.write_event(begins)

    def round_ended(self, ended: RoundEnded) -> None:
        """Add the round's numbers, on the disk when this returns."""
        record = ended.record
        found = metrics_of(record, cohorts=self._cohorts)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
        wall_time = time.time() if self._cohorts else self._opened + record.round
        event = Event(wall_time=wall_time, step=record.round, summary=Summary(value=values))
        self._writer.write_event(event)
        self._writer.flush()

    def closed(self) -> None:
        self._closing.close()
