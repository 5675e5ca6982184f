"""What clients compute as dp_sgd: DP-SGD on a client's records; the client adds noise in every step."""

from math import sqrt

import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_work import RecordJobs, alone, checked_model
from gdpfed.clients.works import Job
from gdpfed.learning.training.secret_draws import gaussian_noise


def work(job: Job) -> torch.Tensor:
    """Return a client's update theta_i - theta after noised steps, shape (d,), float64."""
    return alone(job, updates)


def updates(jobs: RecordJobs) -> torch.Tensor:
    """Return several clients' updates theta_i - theta after noised steps: shape (clients, d), float64."""
    return jobs.noised_updates()


def without_examples(job: Job) -> torch.Tensor:
    """Return only noise, as large as DP-SGD on one record adds it, for a client without usable examples.

    Its standard deviation is eta C sigma sqrt(m) / q after m steps.

    That is as of one record at rate q, since how many there are is not known: nobody sees that it is zeros.
    """
    update = torch.zeros(job.encoding.dimension, dtype=torch.float64)
    told = job.order.records
    if told is None:
        return update
    stddev = told.clipping_norm * told.noise_multiplier * sqrt(told.num_steps) / min(told.batch_rates)
    stddev *= job.order.training.learning_rate
    return update + gaussian_noise(len(update), stddev, job.bits(job.client_id), device=update.device)


def check(order: TrainingOrder, *sum_of: object) -> None:
    """Raise OrderError for missing or wrong DP-SGD steps, LearningError for a model that couples records."""
    checked_model(order)
