"""Tests of ``gdpfed run``: a run that writes no model counts as failed, also if Flower logs no error."""

from contextlib import nullcontext

from gdpfed.cli import main
from gdpfed.launch.flower_run import Launch
from gdpfed.runs.file_formats import MODEL_FILE


class SilentFlower(nullcontext[None]):
    """A stand-in for a run of Flower that ends at once, calls `leave` to write files, and logs nothing."""

    def __init__(self, leave):
        super().__init__()
        self.leave = leave

    def running(self):
        return False

    def check(self):
        self.leave()
        return ""


def flower_that(leave, monkeypatch):
    monkeypatch.setattr(Launch, "training", lambda *words, **options: SilentFlower(leave))


def test_a_run_that_ended_before_its_last_round_failed(monkeypatch, tmp_path, capsys):
    flower_that(lambda: None, monkeypatch)
    assert main(["run", "run.num_rounds=3", f"run.directory={tmp_path}/run"]) == 1
    assert "ended after 0 of 3 rounds" in " ".join(capsys.readouterr().err.split())


def test_a_run_that_has_its_model_is_done(monkeypatch, tmp_path):
    model = tmp_path / "run" / MODEL_FILE

    def leave():
        model.parent.mkdir(parents=True)
        model.touch()

    flower_that(leave, monkeypatch)
    assert main(["run", "run.num_rounds=3", f"run.directory={tmp_path}/run"]) == 0
