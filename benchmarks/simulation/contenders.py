"""Measures the same training in gdpfed simulate, flwr run, a plain PyTorch loop and Apple's pfl."""

import os

from benchmarks.harness import Measured, steady_seconds, train_over_flower
from benchmarks.simulation.work import PFL_PYTHON, PROJECT, Work, run_alone
from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import InputError
from gdpfed.methods import make_method


def simulate(work: Work, *more: str, watched: bool = False) -> Measured:
    """Measure the seconds of rounds of ``gdpfed simulate`` and, if ``watched``, the peak memory."""
    result = run_alone("simulated", vars(work) | {"watched": watched, "more": more})
    command = " ".join(("gdpfed simulate", *more))
    return _measured(f"`{command}`: {result['engine']}", result["seconds"], result["peak_mb"])


def flower(work: Work) -> Measured:
    """Measure rounds of ``flwr run`` on Flower's simulation, as ``gdpfed run`` starts it."""
    seconds = steady_seconds(train_over_flower(work.overrides))
    return _measured("`flwr run`, `secagg=off`, one exchange a round", seconds)


def plain_loop(work: Work, threads: int) -> Measured:
    """Measure rounds of a plain PyTorch loop over the clients."""
    result = run_alone("plain_loop", vars(work) | {"threads": threads}, threads=threads)
    return _measured(f"plain PyTorch loop, {_threads(threads)}", result["seconds"])


def check_pfl() -> None:
    """Raise InputError if the environment of Apple's pfl has not been made."""
    if not PFL_PYTHON.exists():
        raise InputError(
            f"pfl's environment is missing ({PFL_PYTHON.relative_to(PROJECT)}): make it by "
            "`make pfl-environment`, or measure without pfl, as in --against loop"
        )


def pfl(work: Work, processes: int, threads: int) -> Measured:
    """Measure rounds of Apple's pfl in one process, or in several processes that torch.distributed starts."""
    config = load(work.overrides)
    group = make_method(config).plan.groups[0]
    data = task_of(config).load()
    settings = vars(work) | {
        "input_shape": data.input_shape,
        "num_classes": data.num_classes,
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
    spread = f"{processes} process{'es' * (processes > 1)}, {_threads(threads)}{' each' * (processes > 1)}"
    return _measured(f"pfl {result['version']}, {spread}", result["seconds"])


def _measured(name: str, seconds: list[float], peak_mb: float = 0.0) -> Measured:
    return Measured(name, seconds, (str(len(seconds)),), peak_mb)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"
