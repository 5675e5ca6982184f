"""Central evaluation on the test split, which no client has."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gdpfed.learning.evaluate import Evaluation, evaluate
from gdpfed.learning.task import Task, choose_device


def central_evaluation(task: Task, device_name: str) -> Callable[[npt.NDArray[np.float32]], Evaluation]:
    """A function from parameters of shape (d,) to accuracy and loss on the task's test split."""
    model, test, device = task.build_model(), task.load().test, choose_device(device_name)
    return lambda theta: evaluate(model, theta, test, device=device)
