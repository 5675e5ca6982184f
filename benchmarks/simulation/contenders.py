"""The same work done in five ways, each in processes of its own on the same cores."""

import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.simulation.work import PFL_PYTHON, PROJECT, Measured, Work, run_alone
from conf.load import load
from gdpfed.launch.simulation_backend import Launch
from gdpfed.methods import make_method
from gdpfed.runs.records import read_rounds


def simulate(work: Work, *more: str, watched: bool = False) -> Measured:
    """``gdpfed simulate``; with ``watched`` its memory is measured, too."""
    result = run_alone("simulated", vars(work) | {"watched": watched, "more": more})
    return Measured(f"gdpfed simulate: {result['engine']}", result["seconds"], result["peak_mb"])


def flower(work: Work) -> Measured:
    """``flwr run`` on Flower's simulation, as ``gdpfed run`` starts it."""
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        launch = Launch.training(work.overrides, num_clients=work.num_clients, directory=run, resuming=False)
        with launch:
            while launch.running():
                pass
            launch.check()
        records = read_rounds(run)[1:]
    seconds = [record.training_seconds for record in records]
    return Measured("flwr run, secagg=off", seconds)


def plain_loop(work: Work, threads: int) -> Measured:
    """A loop over the clients in PyTorch."""
    result = run_alone("plain_loop", vars(work) | {"threads": threads}, threads=threads)
    return Measured(f"plain PyTorch loop, {_threads(threads)}", result["seconds"])


def pfl(work: Work, processes: int, threads: int) -> Measured:
    """Apple's pfl; more than one process through torch.distributed, as its documentation says."""
    config = load(work.overrides)
    group = make_method(config).plan.groups[0]
    settings = vars(work) | {
        "threads": threads,
        "local_steps": config.training.local_steps,
        "batch_size": config.training.batch_size,
        "learning_rate": config.training.learning_rate,
        "clipping_norm": group.clipping_norm,
        "noise_multiplier": group.noise_multiplier,
    }
    share = ("-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--no-python", str(PFL_PYTHON))
    os.environ["PFL_PYTORCH_DEVICE"] = work.device
    result = run_alone(
        "pfl_rounds", settings, python=PFL_PYTHON, before=share if processes > 1 else (), threads=threads
    )
    name = f"pfl {_version()}, {processes} process{'es' * (processes > 1)}, {_threads(threads)}"
    return Measured(name, result["seconds"])


def _version() -> str:
    code = "from importlib.metadata import version; print(version('pfl'))"
    done = subprocess.run(  # noqa: S603 - our own program
        [str(PFL_PYTHON), "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"
