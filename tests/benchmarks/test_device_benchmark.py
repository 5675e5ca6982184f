"""Tests of the benchmark of masks on a device (a GPU), with a CPU that stands in for the device."""

import pytest
import torch

from benchmarks.secagg import device
from gdpfed.clients.device.sums import DeviceSum
from gdpfed.errors import InputError
from testing.device_stand_in import masks_on_cpu


def test_its_tables_have_a_figure_for_every_step():
    effort = device.Effort(members=6, dimension=2000, repeats=1)
    messages, steps = device.tables(DeviceSum(masks_on_cpu()), "stand-in", effort)
    assert [row[0] for row in messages.rows] == ["gaussian", "discrete_gaussian"]
    assert all(
        float(figure.replace(",", "")) > 0 for row in (*messages.rows, *steps.rows) for figure in row[1:]
    )
    assert steps.note == "0 of 2,000 rounded draws differ from those of the CPU."


def test_both_sides_send_the_same_message():
    client = device.Client("chacha20", device.Effort(members=6, dimension=2000, repeats=1))
    update, there = torch.linspace(-1, 1, 2000).double(), DeviceSum(masks_on_cpu())
    for law in device.LAWS:
        assert client.on_device(there, update, law) == client.on_cpu(update, law)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_it_needs_a_gpu(monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmarks.secagg.device", "--quick"])
    with pytest.raises(InputError, match="there is no GPU cuda: run this where PyTorch sees a CUDA device"):
        device.main()
