"""Measures accuracies on Tiny Shakespeare under settings that the GDPFed paper leaves open.

The paper says of Shakespeare: an LSTM that predicts the next character, one client a role, 30 local steps
of batch 4, momentum 0.9, 50 rounds of 10 % of the clients, clipping norm 1. Each reading is a learning rate
and a network, and of one also ten times the steps. A table cell is the accuracy after the last round, and
in brackets the best accuracy of the rounds 10, 20, .... The paper has LEAF's 714 roles; this command has
the roles of the file that dataset.path names.

    python -m benchmarks.text_readings [OVERRIDE ...] [--seeds 1] [--only READING ...] [--methods M ...]

Budgets, rates and delta are the paper's.
"""

from benchmarks.open_settings import PaperSetting, show_readings

SMALL = "dataset.model_options={hidden_units:32,num_layers:1}"
PAPER = PaperSetting(
    data="Shakespeare",
    words=("dataset=shakespeare", "privacy.against=outsiders", "secagg=off"),
    printed={
        "fedavg": "60.62",
        "dp_fedavg": "34.97",
        "gdpfed": "37.63",
        "pfa": "36.69",
        "idp_fedavg_scale": "37.26",
        "gdpfed_plus": "42.00",
    },
    readings={
        "two layers of 256, rate 0.1": ("training.learning_rate=0.1",),
        "two layers of 256, rate 0.5": ("training.learning_rate=0.5",),
        "two layers of 256, rate 1": ("training.learning_rate=1.0",),
        "one layer of 256, rate 1": (
            "training.learning_rate=1.0",
            "dataset.model_options={hidden_units:256,num_layers:1}",
        ),
        "one layer of 32, rate 0.1": ("training.learning_rate=0.1", SMALL),
        "one layer of 32, rate 0.5": ("training.learning_rate=0.5", SMALL),
        "one layer of 32, rate 1": ("training.learning_rate=1.0", SMALL),
        "one layer of 32, rate 0.5, 300 steps": (
            "training.learning_rate=0.5",
            SMALL,
            "training.local_steps=300",
        ),
    },
)


def main() -> None:
    """Train each method with each reading (possible settings of the GDPFed paper); show the accuracies."""
    show_readings(__doc__, PAPER)


if __name__ == "__main__":
    main()
