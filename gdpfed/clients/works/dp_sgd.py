"""What clients compute as dp_sgd: DP-SGD on a client's records; the client adds noise in every step."""

from operator import mul

import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_work import RecordJobs, alone, checked_model, checked_steps
from gdpfed.clients.works import Job
from gdpfed.learning.training.optimizers import Descent
from gdpfed.learning.training.secret_draws import gaussian_noise


def work(job: Job) -> torch.Tensor:
    """Return a client's update theta_i - theta after noised steps, shape (d,), float64."""
    return alone(job, updates)


def updates(jobs: RecordJobs) -> torch.Tensor:
    """Return several clients' updates theta_i - theta after noised steps: shape (clients, d), float64."""
    return jobs.noised_updates()


def without_examples(job: Job) -> torch.Tensor:
    """Return an update of noise alone (steps with empty batches) for a client whose examples are unusable.

    Each step has the noise C sigma / (q n) of the client's number n of records, which is public; records of
    several groups are counted by the groups' shares. So nobody sees that the examples were not used.
    """
    steps = checked_steps(job.order)
    shares = job.order.task.record_shares if len(steps.batch_rates) > 1 else ()
    rate = sum(map(mul, shares, steps.batch_rates)) or min(steps.batch_rates)
    stddev = steps.clipping_norm * steps.noise_multiplier / (rate * job.records)
    model, random_bytes = torch.zeros(len(job.theta)), job.bits(job.client_id)
    descent = Descent(model, job.order.training)
    for _ in range(steps.num_steps):
        descent.step(gaussian_noise(len(model), stddev, random_bytes, device=model.device).float())
    return model.double()


def check(order: TrainingOrder, *sum_of: object) -> None:
    """Raise an error if DP-SGD steps are missing or invalid, or if the model mixes a batch's records."""
    checked_model(order)
