"""Metrics as TensorBoard event files, in the run's own directory."""

import time
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from gdpfed.report.metrics import MetricSink, metrics_of
from gdpfed.runs.records import RoundRecord

EVENTS_FOLDER = "tensorboard"


class EventFiles(MetricSink):
    """Writes one event file a process; TensorBoard shows those of a resumed run as one.

    The library's SummaryWriter hands events to a thread, so that a killed process loses the last of
    them; its EventsWriter, used here, writes them at once.

    Args:
        directory: of the run; ``tensorboard --logdir`` of it or of a folder of runs finds them.
        completed_rounds: rounds behind the run; what an earlier process wrote beyond them is hidden.
    """

    def __init__(self, directory: Path, completed_rounds: int) -> None:
        folder = directory / EVENTS_FOLDER
        folder.mkdir(exist_ok=True)
        # Two processes that start in one second are told apart by where they begin.
        self._writer = EventsWriter(str(folder / "events"), f".{completed_rounds}")
        begins = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(wall_time=time.time(), step=completed_rounds + 1, session_log=begins))

    def write(self, record: RoundRecord) -> None:
        """Add the round's numbers, on the disk when this returns."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics_of(record).items()]
        event = Event(wall_time=time.time(), step=record.round, summary=Summary(value=values))
        self._writer.write_event(event)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
