"""Chooses the simulation's engine (the code that trains clients) by a fixed rule."""

import os
import sys
from dataclasses import replace
from functools import partial
from multiprocessing import current_process
from typing import Any

import numpy as np
import torch

from conf.schema import SimulationConfig
from conf.schema.run_config import AUTO, LOCAL, RAY
from gdpfed.child_process import can_fork
from gdpfed.clients.record_forms import gradients_of, graphs_of
from gdpfed.errors import ConfigError, words_of
from gdpfed.installed import how_to_get
from gdpfed.learning.models import flatten, predicts_nothing
from gdpfed.learning.task import Task, choose_device
from gdpfed.learning.training.record_training import RecordGradients
from gdpfed.learning.training.step_recording import recorder
from gdpfed.registry import Registry
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.batched_training import BatchedTraining
from gdpfed.simulation.engine import Engine, SequentialEngine
from gdpfed.simulation.parallel_engines import SeveralDevices, WorkerProcesses
from gdpfed.simulation.training_choice import choose_training

MACHINES: Registry[Any] = Registry("kind of machines", "gdpfed.machines", error=ConfigError)
"""Engines of several machines: functions (address, workers, choose, source) -> engine."""
# A step of a larger model keeps a core busy by itself, and its unfolded pictures would not fit the caches.
MOST_BATCHED_PARAMETERS_ON_CPU = 2_000_000
# More processes than cores only wait for each other, and each has an engine of its own in memory.
LEAST_WORKERS, MOST_WORKERS_A_CORE = 8, 2
NOT_NOISED = ", without graphs (no steps of plain SGD that clients noise)"


def choose_engine(
    settings: SimulationConfig,
    task: Task,
    device_name: str,
    *,
    records: bool = False,
    noised_steps: bool = False,
) -> tuple[Engine, str]:
    """Return the engine (the code that trains clients) that the settings ask for, and its name in words.

    ``auto`` trains many clients at once on a GPU, and on a CPU up to 2 million parameters, as long as the
    model can be batched; on a CPU one worker process a core shares the cohort. `settings`: of the simulation.
    `task`: model and data. `device_name`: where to train. `records`: whether clients compute gradients of
    single records. `noised_steps`: whether these are for steps of plain SGD that clients noise one by one,
    which a GPU can repeat as graphs.

    Raises:
        ConfigError: settings that do not go with the device or the model.
        LearningError: a model or a loss that couples the records of a batch, where they are the unit.
        RunError: machines of a cluster that do not begin.
    """
    if settings.backend != RAY:
        device = choose_device(device_name)
    elif device_name == "cuda":
        raise ConfigError(
            "run.device=cuda is for one machine, and simulation.backend=ray trains on CPUs: leave one of "
            "them out"
        )
    else:
        device = torch.device("cpu")
    _check_settings(settings, device)
    if predicts_nothing(task.build_model()):
        # Clients count, each by itself, and nobody computes a gradient.
        settings, records = replace(settings, engine="sequential"), False
    form = gradients_of(task, device) if records else None
    if form is not None and settings.precision != "float32":
        raise ConfigError(
            f"simulation.precision={settings.precision} is for runs that protect clients: leave it out, "
            "since gradients of records are computed in float32"
        )
    batched = _is_batched(settings, task, device, form)
    kind = "many clients at once" if batched else "one client after the other"
    if form is not None:
        record = recorder(device, batched and settings.graphs == "auto")
        words = graphs_of(task, form, record)[1] if noised_steps or record is None else NOT_NOISED
        kind += f", {form.form}{words}"
    elif batched:
        # Compiles what there is to compile, for all workers.
        kind += choose_training(task, device, settings.precision, settings.graphs == "auto")[1]
    if settings.backend == RAY:
        return _on_ray(replace(settings, engine="batched" if batched else "sequential"), task, kind, records)
    if device.type == "cuda":
        count = torch.cuda.device_count() if batched else 1
        gpus = [torch.device("cuda", index) for index in range(count)]
        engines = [_one_engine(settings, task, gpu, batched) for gpu in gpus]
        engine: Engine = engines[0] if count == 1 else SeveralDevices(engines)
        return engine, f"{kind} on {torch.cuda.get_device_name(device)}"
    workers = settings.workers or usual_workers()
    make = partial(_one_engine, settings, task, device, batched)
    if workers == 1:
        return make(), _on_cpu(kind, workers)
    return WorkerProcesses(make, workers), _on_cpu(kind, workers)


def usual_workers() -> int:
    """Return the default number of worker processes: one for each core, or 1 if processes cannot fork."""
    return len(os.sched_getaffinity(0)) if can_fork() else 1


def _on_cpu(kind: str, workers: int) -> str:
    return f"{kind} on the CPU" if workers == 1 else f"{kind} in each of {workers} processes"


def _on_ray(settings: SimulationConfig, task: Task, kind: str, records: bool) -> tuple[Engine, str]:
    """Return an engine on a Ray cluster; each machine chooses its own engine, as `choose_engine` does."""
    try:
        make_machines = MACHINES.get("ray")
    except ConfigError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError) or error.__cause__.name != "ray":
            raise
        raise ConfigError(
            f"simulation.backend=ray needs Ray, which is not installed: {how_to_get('ray')}, or leave it out"
        ) from None

    def choose(workers: int) -> partial[tuple[Engine, str]]:
        there = replace(settings, backend=LOCAL, ray_address=AUTO, workers=workers)
        return partial(choose_engine, there, task, "cpu", records=records)

    engine = make_machines(settings.ray_address, settings.workers, choose, task.source)
    workers = engine.shares
    for (machine, words), count in zip(engine.words.items(), workers, strict=True):
        if words != (here := _on_cpu(kind, count)):
            engine.close()
            raise ConfigError(
                f"{machine} would train {words}, and this machine {here}: their sums would differ in the "
                "last bits. Install the same packages there, or set simulation.engine=sequential"
            )
    return engine, f"{kind} in each of {sum(workers)} processes on {len(workers)} machines of a Ray cluster"


def _check_settings(settings: SimulationConfig, device: torch.device) -> None:
    if settings.precision == "tf32" and device.type != "cuda":
        raise ConfigError(
            f"simulation.precision=tf32 is a precision of GPUs and this run is on {device}: use float32"
        )
    if (settings.workers or 1) > 1 and (device.type == "cuda" or not can_fork()):
        daemon = " in a daemonic process" if current_process().daemon else ""
        place = "on a GPU, which one process keeps busy" if can_fork() else f"on {sys.platform}{daemon}"
        raise ConfigError(f"simulation.workers={settings.workers} is not available {place}: leave it out")
    if settings.backend == RAY:
        return  # Each machine compares with its own cores.
    cores = len(os.sched_getaffinity(0))
    if (settings.workers or 1) > max(LEAST_WORKERS, MOST_WORKERS_A_CORE * cores):
        raise ConfigError(
            f"simulation.workers={settings.workers} is far above the {cores} cores of this machine, and "
            "slower than one for each core: leave it out"
        )


def _is_batched(
    settings: SimulationConfig, task: Task, device: torch.device, form: RecordGradients | None
) -> bool:
    """Whether many clients are trained at once, by the settings or by the model's size and layers.

    Raises ConfigError: the model has operations that have no form for many clients, and must be batched.
    """
    told = settings.engine == "batched" or settings.precision != "float32"
    if settings.engine == "sequential":
        return False
    if not told and device.type == "cpu" and task.dimension > MOST_BATCHED_PARAMETERS_ON_CPU:
        return False
    obstacle = ""
    if form is not None:
        obstacle = "" if form.stacks else f"its gradients go {form.form}"
    else:
        model = task.build_model()
        example = torch.from_numpy(task.load().train.take(np.zeros(2, dtype=np.int64)).x)
        try:
            training = BatchedTraining(model, torch.device("cpu"))
            with torch.no_grad():
                thetas = torch.from_numpy(flatten(model)).repeat(2, 1)
                training.logits(thetas, torch.stack([example, example]), torch.zeros(2, dtype=torch.int64))
        except (RuntimeError, ValueError, TypeError) as error:
            obstacle = words_of(error, 200)
    if obstacle and told:
        raise ConfigError(
            f"dataset.model={task.model} cannot train many clients at once ({obstacle}): use "
            "simulation.engine=sequential"
        )
    return not obstacle


def _one_engine(settings: SimulationConfig, task: Task, device: torch.device, batched: bool) -> Engine:
    if not batched:
        return SequentialEngine()
    return BatchedEngine(
        task,
        device,
        precision=settings.precision,
        graphs=settings.graphs == "auto",
        chunk_clients=settings.clients_at_once,
    )
