"""Tests of outputs for operators: status line, model card, event files, and calls to MLflow."""

import json
import re
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import inf
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from gdpfed.errors import RunError
from gdpfed.report.metric_display import metrics_of, status_line
from gdpfed.report.trackers import EventFiles, MlflowRun, TrackingError
from gdpfed.rounds.observers import RoundEnded, RunOpened
from gdpfed.runs.file_formats import EVENTS_FOLDER
from gdpfed.runs.round_log import RoundLogEntry
from testing.small_runs import ACTIVE, run


def record(number=1, **changes):
    values = {
        "round": number,
        "accuracy": 0.5,
        "loss": 1.25,
        "cohort_sizes": [3, 4],
        "survivors": [3, 0],
        "failures": {},
        "spent_epsilon": [0.25, None],
        "epsilon_against_server": [1.5, None],
        "seconds": {"total": 2.0},
    }
    return RoundLogEntry(**values | changes)


def ended(number, **changes):
    theta = np.zeros(3, np.float32)
    return RoundEnded(number - 1, theta, theta, [], record(number, **changes))


def test_the_status_line_says_who_took_part_and_what_is_left():
    line = status_line(
        record(failures={"group 1": "too few"}), [1.0, 3.0], 30, 3725.0, cohorts=True, against="everyone"
    )
    assert line == (
        "round 1/30: accuracy 50.0 %, asked 3+4, in the sums 3+0, epsilon against everyone, spent+left "
        "0.25+0.75, 2.0 s, 1 h 2 min left; group 1: too few"
    )
    assert "no privacy" in status_line(record(), [inf, inf], 30, 65.0, cohorts=True, against="")
    assert "1 min 5 s left" in status_line(record(), [inf, inf], 30, 65.0, cohorts=True, against="")


def test_metrics_leave_out_what_is_not_promised():
    assert metrics_of(record(), cohorts=True) == {
        "test/accuracy": 0.5,
        "test/loss": 1.25,
        "cohort/group_0": 3.0,
        "cohort/group_1": 4.0,
        "survivors/sum_0": 3.0,
        "survivors/sum_1": 0.0,
        "epsilon/group_0": 0.25,
        "epsilon_against_server/group_0": 1.5,
        "seconds/total": 2.0,
    }


def drawn(sizes, seconds):
    """Return those fields of a round's record that depend on who was drawn."""
    against = [None if size < 3 else size / 2 for size in sizes]
    failures = {f"group {k}": f"cohort of {size} is small" for k, size in enumerate(sizes) if size < 3}
    return {
        "cohort_sizes": sizes,
        "survivors": sizes,
        "failures": dict.fromkeys(["group 1"], "") | failures,
        "epsilon_against_server": against,
        "seconds": {"total": seconds, "train": seconds / 2},
    }


def test_nothing_that_is_shown_depends_on_who_was_drawn(tmp_path):
    """Status lines, metrics and event files of a run with secret samples do not depend on who was drawn."""
    few, many = drawn([3, 2], 0.5), drawn([90, 70], 60.0)
    shown = [
        (
            status_line(
                record(**each),
                *([1.0, 3.0], 30, 29 * each["seconds"]["total"]),
                cohorts=False,
                against="outsiders",
            ),
            metrics_of(record(**each), cohorts=False),
        )
        for each in (few, many)
    ]
    assert shown[0] == shown[1]
    assert shown[0][1] == {"test/accuracy": 0.5, "test/loss": 1.25, "epsilon/group_0": 0.25}
    times = []
    for name, each in (("few", few), ("many", many)):
        sink = EventFiles(cohorts=False)
        (tmp_path / name).mkdir()
        sink.opened(RunOpened(tmp_path / name, 0))
        for number in (1, 2):
            sink.round_ended(ended(number, **each))
        sink.closed()
        (file,) = (tmp_path / name / EVENTS_FOLDER).iterdir()
        events = [event for event in events_in(file) if event.summary.value]
        times.append([event.wall_time - events[0].wall_time for event in events])
    assert times == [[0, 1], [0, 1]]
    assert scalars_in(tmp_path / "few" / EVENTS_FOLDER) == scalars_in(tmp_path / "many" / EVENTS_FOLDER)


def events_in(path):
    """Yield the events of a TFRecord file: length (8 bytes), checksum (4), event, checksum (4)."""
    data = path.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def scalars_in(folder):
    return {
        (value.tag, event.step): value.simple_value
        for path in folder.iterdir()
        for event in events_in(path)
        for value in event.summary.value
    }


def test_event_files_hold_every_figure_of_every_round(tmp_path):
    sink = EventFiles(cohorts=True)
    sink.opened(RunOpened(tmp_path, 0))
    sink.round_ended(ended(1))
    sink.round_ended(ended(2, accuracy=0.75))
    assert scalars_in(tmp_path / EVENTS_FOLDER)["test/accuracy", 2] == 0.75
    sink.closed()
    expected = {
        (name, number): value
        for number in (1, 2)
        for name, value in metrics_of(record(), cohorts=True).items()
    }
    assert scalars_in(tmp_path / EVENTS_FOLDER) == expected | {("test/accuracy", 2): 0.75}


def test_a_process_without_a_round_leaves_no_event_to_write_after_the_seal(tmp_path):
    sink = EventFiles(cohorts=True)
    sink.opened(RunOpened(tmp_path, 3))
    (file,) = (tmp_path / EVENTS_FOLDER).iterdir()
    sealed = file.read_bytes()
    sink.closed()
    assert [event.step for event in events_in(file)][-1] == 4
    assert file.read_bytes() == sealed


def test_a_process_that_resumes_in_the_same_second_keeps_the_first_ones_events(tmp_path):
    for number in (1, 2):
        sink = EventFiles(cohorts=True)
        sink.opened(RunOpened(tmp_path, number - 1))
        sink.round_ended(ended(number))
        sink.closed()
    assert {step for _, step in scalars_in(tmp_path / EVENTS_FOLDER)} == {1, 2}


class TrackingServer(HTTPServer):
    """HTTP server that records MLflow calls, and refuses those that a test names."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Tracker)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refused: set[str] = set()


class Tracker(BaseHTTPRequestHandler):
    """Handler of the part of MLflow's REST interface that a run uses."""

    server: TrackingServer

    def do_GET(self):
        if "runs/get" in self.path:
            self._answer(200, {"run": {"info": {"run_id": "r1", "experiment_id": "7"}, "data": {}}})
        else:
            self._answer(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = self.path.rpartition("2.0/mlflow/")[2]
        if call in self.server.refused:
            self._answer(400, {"error_code": "BAD_REQUEST", "message": "the disk is full"})
            return
        self.server.calls.append((call, body))
        self._answer(
            200, {"experiment_id": "7", "run": {"info": {"run_id": "r1"}, "data": {}}, "run_info": {}}
        )

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@contextmanager
def tracker():
    server = TrackingServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_mlflow_is_sent_every_figure_and_the_end():
    with tracker() as (server, uri):
        sink = MlflowRun(uri, "name", {"method": "gdpfed"}, print, cohorts=True)
        sink.round_ended(ended(3))
        sink.closed()
    metrics = {
        body["key"]: (body["value"], body["step"]) for call, body in server.calls if call == "runs/log-metric"
    }
    assert metrics == {name: (value, 3) for name, value in metrics_of(record(), cohorts=True).items()}
    assert [body["key"] for call, body in server.calls if call == "runs/log-parameter"] == ["method"]
    assert [body["status"] for call, body in server.calls if call == "runs/update"] == ["FINISHED"]


def test_a_tracker_that_fails_later_is_left_behind():
    said: list[str] = []
    with tracker() as (server, uri):
        sink = MlflowRun(uri, "name", {}, said.append, cohorts=True)
        server.refused.add("runs/log-metric")
        sink.round_ended(ended(1))
        sink.round_ended(ended(2))
        sink.closed()
    assert len(said) == 1
    assert said[0].startswith(f"run.mlflow={uri} failed, going on without: ")
    assert "the disk is full" in said[0]


def test_a_tracker_that_cannot_be_reached_is_one_line_before_anything_is_written(tmp_path):
    with pytest.raises(RunError, match=r"run.mlflow=http://127.0.0.1:9 cannot be used: ") as raised:
        run(tmp_path / "run", ["run.mlflow=http://127.0.0.1:9"])
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_without_the_extra_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(TrackingError, match=r"MLflow is not installed: .*pip install 'mlflow-skinny>="):
        MlflowRun("http://127.0.0.1:9", "name", {}, print, cohorts=True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            [],
            [
                *(
                    "3, complete",
                    "| 2 | 4 | 6 |",
                    "had sent nothing but noise",
                    "The server knows whom it asked",
                ),
                *("against members of its sums", "told how many are in it, though not who. So against them"),
            ],
        ),
        (["run.stop_after_round=2"], ["2 of 3, paused: it may go on"]),
        (
            ["method=fedavg", "run.num_rounds=1"],
            ["Nothing: updates were neither clipped nor noised.", "Everything, see above."],
        ),
        (
            ["secagg=off", "run.num_rounds=1"],
            ["secure aggregation was off, so nothing at all is promised against the server", "| no bound |"],
        ),
        (
            [*ACTIVE, "run.num_rounds=1"],
            [
                "secure aggregation active",
                "told who else is in it, by lasting numbers. So against them",
                "a server that lied from the start about who the clients are",
            ],
        ),
    ],
)
def test_the_card_says_in_plain_words_what_is_promised(tmp_path, overrides, words):
    run(tmp_path / "run", overrides)
    card = (tmp_path / "run" / "model_card.md").read_text()
    assert card.startswith("# linear on digits, trained by ")
    assert "accuracy on the server's test set: " in card
    for each in words:
        assert each in card
    assert len(re.findall(r"^\| \d (\| \d+\.\d % ){4}\|$", card, re.MULTILINE)) == 3 * (
        "fedavg" not in card[:60]
    )
    assert ("does not follow the protocol" in card) == (overrides in ([], ["run.stop_after_round=2"]))
