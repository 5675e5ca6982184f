"""Measures accuracies on CIFAR-10 under settings that the GDPFed paper leaves open, and with small networks.

The paper says of CIFAR-10: ResNet-18, 600 clients, 5 local steps of batch 50, momentum 0.5, 100 rounds of
10 % of the clients, clipping norm 1.5. It names no learning rate, and not what stands in the place of batch
normalization, which cannot be averaged under privacy. Each reading is a network and a rate. A table cell is
the accuracy after the last round, and in brackets the best accuracy of the rounds 10, 20, .... The pictures
are the files of the folder that dataset.path names.

    python -m benchmarks.picture_readings [OVERRIDE ...] [--seeds 1] [--only READING ...] [--methods M ...]

Budgets, rates and delta are the paper's. ResNet-18 needs a GPU: `run.device=cuda`.
"""

from benchmarks.open_settings import PaperSetting, show_readings


def _network(name: str, rate: float, **options: int) -> tuple[str, ...]:
    """Return the settings of a network and a learning rate."""
    words = (f"dataset.model={name}", f"training.learning_rate={rate}")
    return (*words, *(f"dataset.model_options={{{option}:{value}}}" for option, value in options.items()))


PAPER = PaperSetting(
    data="CIFAR-10",
    words=(
        "dataset=image_folder",
        "dataset.path=data/cifar10-images",
        "dataset.num_clients=600",
        "privacy.against=outsiders",
        "privacy.budgets=[2,6,12]",
        "privacy.clipping_norm=1.5",
        "privacy.sampling_rate=0.1",
        "run.num_rounds=100",
        "training.local_steps=5",
        "training.batch_size=50",
        "training.momentum=0.5",
        "secagg=off",
    ),
    printed={
        "fedavg": "56.40",
        "dp_fedavg": "32.10",
        "gdpfed": "34.00",
        "pfa": "37.17",
        "idp_fedavg_scale": "37.49",
        "gdpfed_plus": "38.78",
    },
    readings={
        "ResNet-18, rate 0.1": _network("resnet18", 0.1),
        "ResNet-18, rate 0.03": _network("resnet18", 0.03),
        "two convolutions, rate 0.1": _network("cnn2", 0.1),
        "two convolutions, rate 0.3": _network("cnn2", 0.3),
        "three convolutions of 16, 32, 64, rate 0.1": _network("cnn3", 0.1),
        "three convolutions of 16, 32, 64, rate 0.3": _network("cnn3", 0.3),
        "three convolutions of 32, 64, 128, rate 0.1": _network("cnn3", 0.1, width=32),
    },
)


def main() -> None:
    """Train each method with each reading (possible settings of the GDPFed paper); show the accuracies."""
    show_readings(__doc__, PAPER)


if __name__ == "__main__":
    main()
