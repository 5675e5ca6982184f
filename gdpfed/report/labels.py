"""The names of methods and data sets in titles."""

from pathlib import Path

DATASETS = {
    "breast_cancer": "Breast cancer",
    "cifar10": "CIFAR-10",
    "cifar10-hog": "CIFAR-10 (JPEG), HOG",
    "cifar10-jpeg": "CIFAR-10 (JPEG)",
    "cifar10-prior": "CIFAR-10 (JPEG), random prior",
    "digits": "Digits",
    "fmnist": "FMNIST",
    "heart_disease": "Heart disease",
    "shakespeare": "Shakespeare",
    "svhn": "SVHN",
    "tinyshakespeare": "Tiny Shakespeare",
    "tinyshakespeare-ngram": "Tiny Shakespeare, 3-gram",
}
OWN_DATA = {"csv": "table", "image_folder": "pictures", "npz": "data"}
METHODS = {
    "fedavg": "FedAvg (no privacy)",
    "dp_fedavg": "DP-FedAvg",
    "gdpfed": "GDPFed",
    "gdpfed_op": "GDPFed-op",
    "gdpfed_plus": "GDPFed+",
    "gdpfed_star": "GDPFed*",
    "idp_fedavg_scale": "IDP-FedAvg, scale",
    "idp_fedavg_sample": "IDP-FedAvg, sample",
    "pfa": "PFA",
    "dp_sgd": "DP-SGD",
    "dp_sum": "DP-SGD of the sum",
    "ali_dpfl": "ALI-DPFL",
    "h2fdp": "H2FDP",
    "hfl_dp": "HFL-DP",
    "hier_fedavg": "Hierarchical FedAvg (no privacy)",
    "pedpfl": "PEDPFL",
    "edge_average": "Average of edges",
    "fedpcs": "FedPCS",
    "sampled_fedavg": "FedAvg, sampled (no privacy)",
}


def dataset_label(name: str, path: str | None = None) -> str:
    """The name of a data set in print; of data of one's own, what it is and the file or folder it is in."""
    if name in OWN_DATA:
        place = "" if path is None else f" in {Path(path).name}"
        return f"own {OWN_DATA[name]}{place}"
    return DATASETS.get(name, name)


def method_label(name: str) -> str:
    """The name of a method in print."""
    return METHODS.get(name, name)
