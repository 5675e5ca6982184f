"""Tests of loading a configuration: what is accepted, and the one-line errors for all other input."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from itertools import zip_longest
from unittest.mock import patch

import pytest
import yaml
from hydra import compose
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from conf import option_files
from conf.load import load, options, split, to_yaml
from conf.option_files import method_configs, option_directories
from conf.schema import MethodConfig, TrainingConfig
from conf.suggestions import SETTING_BY_WORD
from gdpfed.errors import ConfigError
from gdpfed.methods import METHODS


def test_defaults_are_the_demo():
    config = load()
    assert (config.dataset.name, config.method.name, config.secagg.mode) == (
        "digits",
        "gdpfed_plus",
        "curious",
    )
    assert config.privacy.budgets == [1.0, 3.0, 6.0]
    assert config.privacy.clipping_norm == config.dataset.clipping_norm
    assert config.run.num_rounds == config.dataset.num_rounds == 30


# Table 1 and appendix B.2 of the paper.
PAPER = {
    "fmnist": (6000, 50, 1.5, [0.5, 1.5, 3.0], 0.02, [0.0069, 0.0189, 0.0342], 5, 10, 0.0, "iid"),
    "svhn": (6000, 100, 1.0, [0.5, 1.5, 3.0], 0.05, [0.0166, 0.0467, 0.0868], 25, 10, 0.0, "iid"),
    "cifar10": (600, 100, 1.5, [2.0, 6.0, 12.0], 0.1, [0.0361, 0.0962, 0.1677], 5, 50, 0.5, "iid"),
    "shakespeare": (714, 50, 1.0, [0.5, 1.5, 3.0], 0.1, [0.0479, 0.0983, 0.1521], 30, 4, 0.9, "natural"),
}


def test_numbers_without_a_point_are_the_same_configuration():
    whole = load(["privacy.budgets=[1,3,6]", "privacy.sampling_rates=[1,1,1]"]).privacy
    assert [type(each) for each in (*whole.budgets, *whole.sampling_rates)] == [float] * 6
    assert whole == load(["privacy.budgets=[1.0,3.0,6.0]", "privacy.sampling_rates=[1.0,1.0,1.0]"]).privacy


@pytest.mark.parametrize("name", PAPER)
def test_data_sets_carry_the_papers_settings(name):
    data = load([f"dataset={name}"]).dataset
    assert (
        data.num_clients,
        data.num_rounds,
        data.clipping_norm,
        data.budgets,
        data.sampling_rate,
        data.paper_sampling_rates,
        data.local_steps,
        data.batch_size,
        data.momentum,
        data.partition,
    ) == PAPER[name]


def test_every_option_file_composes():
    groups = ("dataset", "training", "method", "privacy", "secagg", "run", "simulation")
    named = [[f"{group}={option}" for option in options(group)] for group in groups]
    assert all(named)
    # One of each group at a time: Hydra composes all groups whatever is chosen.
    for chosen in zip_longest(*named):
        load([each for each in chosen if each])
    assert list(options("method")) == METHODS.names()


def test_a_method_is_its_file_its_option_file_and_one_line():
    for name in METHODS.names():
        method = METHODS.get(name)
        assert method.name == name
        assert type(load([f"method={name}"]).method) is method.config_class


def test_importing_the_configuration_imports_nothing_of_gdpfed():
    command = "import sys, conf.load, conf.settings; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert "conf.option_files" in shown.stdout
    assert not [name for name in shown.stdout.split() if name.partition(".")[0] == "gdpfed"]


def test_a_configuration_needs_methods_that_were_handed_in():
    command = "import conf.load; conf.load.load()"
    shown = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert shown.stderr.splitlines()[-1].startswith("conf.errors.ConfigError: no method is known yet: import")


def test_clients_train_as_the_data_set_recommends_unless_told_otherwise():
    names = [field.name for field in fields(TrainingConfig)]
    names, others = names[:5], names[5:]
    assert names == ["local_steps", "batch_size", "learning_rate", "learning_rate_decay", "momentum"]
    # What no data set recommends.
    unset = ("sgd", None, 0.0, "constant", None, None, None)
    own = dict(zip(others, unset, strict=True))
    whole = load(["dataset=shakespeare"])
    assert [getattr(whole.training, name) for name in names] == [30, 4, 0.1, 0.99, 0.9]
    values = dict(zip(names, [7, 8, 0.25, 0.5, 0.75], strict=True))
    recommended = load([f"dataset.{name}={value}" for name, value in values.items()])
    assert asdict(recommended.training) == {**values, **own}
    chosen = load([f"training.{name}={value}" for name, value in values.items()])
    assert asdict(chosen.training) == {**values, **own}
    assert chosen.dataset == load().dataset


def test_models_take_options_of_their_own():
    assert load(["dataset.model_options={hidden_units:8,rate:0.5}"]).dataset.model_options == {
        "hidden_units": 8,
        "rate": 0.5,
    }


def test_another_model_has_no_options_of_the_option_files():
    small = {"hidden_units": 32, "num_layers": 1}
    for words, expected in (
        ([], small),
        (["dataset.model=lstm"], small),
        (["dataset.model_options.hidden_units=8", "dataset.model=lstm"], small | {"hidden_units": 8}),
        (["dataset.model_options={characters:2}"], small | {"characters": 2}),
        (["dataset.model=ngram"], None),
        (["dataset.model_options={characters:2}", "dataset.model=ngram"], {"characters": 2}),
    ):
        assert load(["dataset=tinyshakespeare", *words]).dataset.model_options == expected


def test_off_is_a_mode_and_not_a_boolean():
    assert load(["secagg=off"]).secagg.mode == "off"


def test_yaml_says_everything_and_reads_back():
    config = load(["dataset=svhn", "privacy.delta=1e-5"])
    read = yaml.safe_load(to_yaml(config))
    assert read["dataset"]["local_steps"] == 25
    assert read["privacy"]["delta"] == 1e-5
    assert read["training"]["local_steps"] == 25
    assert set(read) == {"dataset", "training", "method", "privacy", "secagg", "run", "simulation"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "dataset=mnist",
            "dataset=mnist is not known; did you mean fmnist? Use breast_cancer, cifar10, "
            "cifar10-features, cifar10-hog, "
            "cifar10-jpeg, cifar10-prior, csv, digits, eicu, eicu-hospitals, eicu-stays, flower_app, fmnist, "
            "fmnist-prior, heart_disease, image_folder, npz, python, shakespeare, svhn, tinyshakespeare or "
            "tinyshakespeare-ngram",
        ),
        ("privacy.budget=[1]", "setting 'privacy.budget' is not known; did you mean 'privacy.budgets'?"),
        ("foo.bar=1", "setting 'foo.bar' is not known; 'gdpfed settings' lists what there is"),
        (
            "clippingnorm=1",
            "'clippingnorm' is not known; did you mean 'privacy.clipping_norm'? 'gdpfed settings' lists",
        ),
        ("run.quux=1", "setting 'run.quux' is not known; 'gdpfed settings run' lists what there is"),
        ("privacy.delta=x", "privacy.delta=x is not a number"),
        ("privacy.clipping=null", "privacy.clipping=null has null in place of a value: give one, or leave"),
        (
            "privacy.group_edges=[0.5,null]",
            "null in place of a value: give one, or leave privacy.group_ed",
        ),
        ("dataset.num_clients=1.5", "dataset.num_clients=1.5 is not a whole number"),
        ("dataset.num_clients=1e3", "dataset.num_clients=1e3 is not a whole number"),
        ("run.num_rounds=1_0", "'run.num_rounds=1_0' has '1_0' for a number: write it in the digits 0 to 9"),
        ("dataset.num_clients='٣٠'", "has '٣٠' for a number: write it in the digits 0 to 9 alone"),
        ("privacy.budgets=[1,٣]", "has '٣' for a number"),
        ("privacy.budgets=3", "privacy.budgets=3 is neither clients nor one number for each"),
        ("+x=1", "'+x=1' is not an override of the form key=value"),
        ("dataset", "'dataset' is not an override of the form key=value"),
        ("run.seed=1,2", "run.seed=1,2 stands for several runs: 'gdpfed simulate --multirun' trains them"),
        ("privacy.epsilon=3", "'privacy.epsilon' is not known; did you mean 'privacy.budgets'? 'gdpfed set"),
        ("privacy.sigma=1", "not known; noise follows from privacy.budgets. 'gdpfed settings privacy' lists"),
        ("lr=0.1", "setting 'lr' is not known; did you mean 'training.learning_rate'? 'gdpfed settings' "),
        ("dataset=", "'dataset=' is not an override of the form key=value"),
        (
            "method=gdpfed method.keep_fraction=[0.1]",
            "setting 'method.keep_fraction' is not known for this method; it belongs to method=gdpfed_plus",
        ),
        (
            "dataset.name=imagenet",
            "dataset.name=imagenet cannot be changed by itself: choose dataset=imagenet",
        ),
        ("method=gdpfed method=pfa", "method=gdpfed and method=pfa are both given: choose one"),
        (
            "training.rounding=none",
            "setting 'training.rounding' is not known; 'gdpfed settings training' lists",
        ),
        ("method.name=fedavg", "method.name=fedavg cannot be changed by itself: choose method=fedavg"),
        ("method=fedavg method.name=dp_fedavg", "cannot be changed by itself: choose method=dp_fedavg"),
        ("method.server_learning_rate=0", "method.server_learning_rate=0.0 must be from 1e-09 to 1e+06"),
        ("privacy.sampling_rates=foo", "privacy.sampling_rates=foo is not known: use auto, paper or one"),
        ("privacy.sampling_rates=[0.1,x]", "privacy.sampling_rates=[0.1, 'x'] is not known: use"),
        ("secagg.threshold=0.4", "secagg.threshold=0.4 must be in [0.5, 1)"),
        ("secagg.threshold=0.9 secagg.dropout_tolerance=0.3", "add up to more than 1"),
        ("secagg.dropout_tolerance=-0.1", "secagg.dropout_tolerance=-0.1 must be in [0, 0.5)"),
        ("secagg.minimum_cohort=1", "a sum of one client hides nothing"),
        ("secagg.mode=on", "secagg.mode=on is not known: use curious, active or off"),
        ("run.num_rounds=0", "run.num_rounds=0 must be from 1 to 100000"),
        ("run.device=tpu", "run.device=tpu is not known: use auto, cpu or cuda"),
        ("run.resume=a run.directory=b", "leave out run.directory"),
        ("dataset.momentum=1", "dataset.momentum=1.0 must be in [0, 1)"),
        ("dataset.learning_rate=-1", "dataset.learning_rate=-1.0 must be from 1e-09 to 1e+06"),
        ("training.momentum=1", "training.momentum=1.0 must be in [0, 1)"),
        ("training.local_steps=0", "training.local_steps=0 must be from 1 to 100000"),
        ("training.learning_rate_decay=2", "training.learning_rate_decay=2.0 must be in (0, 1]"),
        ("training=adam", "training=adam is not known: use sgd"),
        ("training.steps=3", "setting 'training.steps' is not known; did you mean 'training.local_steps'?"),
        (
            "dataset.partition_options=2",
            "dataset.partition_options=2 must be numbers or text by name",
        ),
        ("dataset.partition=dirichlet", "needs a positive concentration, not dataset.dirichlet_alpha=None"),
        ("dataset.partition=dirichlet dataset.dirichlet_alpha=0", "not dataset.dirichlet_alpha=0.0"),
        (
            "dataset.partition=shards dataset.shards=0",
            "not dataset.shards=0: set for instance dataset.shards=2",
        ),
        ("dataset.shards=2", "dataset.shards=2 has no meaning with dataset.partition=iid"),
        ("dataset.dirichlet_alpha=0.3", "dirichlet_alpha=0.3 has no meaning with dataset.partition=iid"),
        ("dataset.channels=2", "dataset.channels=2 must be 1 (grey) or 3 (RGB)"),
        ("dataset.image_size=0", "dataset.image_size=0 must be from 1 to 4096"),
        ("dataset.test_fraction=1", "dataset.test_fraction=1.0 must be in (0, 1)"),
        ("dataset.model_options=8", "dataset.model_options=8 must be numbers or text by name"),
        (
            "dataset.model_options={width:[8]}",
            "dataset.model_options={'width': [8]} must be numbers or text by name",
        ),
        ("privacy.client_budgets=[1]", "privacy.client_budgets=[1.0] goes with budgets of the clients' own"),
        ("privacy.budgets=clients privacy.group_shares=[1]", "does not go with privacy.budgets=clients"),
        (
            "method=fedpcs privacy=record_level method.caps=700",
            "method.caps=700 is not a list: write method.caps=[700]",
        ),
        ("privacy.renyi_orders=odd", "privacy.renyi_orders=odd is not known: use auto, fine or whole"),
    ],
)
def test_bad_input_gets_one_line_that_names_it(overrides, message):
    with pytest.raises(ConfigError) as raised:
        load(split(overrides))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("privacy.budgets=1,3", ", or, for one list, 'privacy.budgets=[1,3]'"),
        ("dataset.metrics=auc,accuracy", ", or, for one list, 'dataset.metrics=[auc,accuracy]'"),
        ("privacy.delta=0,00001", ", or, with a decimal point, privacy.delta=0.00001"),
        ("privacy.budgets=[1],[3]", ""),
        ("privacy.sampling_rate=0.1,0.2", ""),
        ("run.seed=1,2", ""),
        ("training.learning_rate=range(1,3)", ""),
        ("dataset.model_options={width: 1},{width: 2}", ""),
        ("dataset.nothing=1,2", ""),
    ],
)
def test_a_value_of_several_runs_is_offered_as_one(override, said):
    with pytest.raises(ConfigError) as raised:
        load([override])
    several = "stands for several runs: 'gdpfed simulate --multirun' trains them"
    assert str(raised.value) == f"{override} {several}{said}"


def test_words_of_others_name_settings_and_are_none_themselves():
    known = {f"{group}.{key}" for group, values in asdict(load()).items() for key in values}
    # A name without its group may be said, too, as in batch_size.
    names = {key.partition(".")[2] for key in known} - {"batch_size"}
    for word, meant in SETTING_BY_WORD.items():
        assert word not in names
        named = {each for each in meant.split() if "." in each}
        assert named
        assert named <= known


def test_words_are_split_as_a_shell_does():
    assert split("a=1 'b=[1, 2]' \"c='x y'\"") == ["a=1", "b=[1, 2]", "c='x y'"]
    with pytest.raises(ConfigError, match="cannot be split into words"):
        split("a='1")


@pytest.mark.parametrize("path", ["/a\\b", "/it's", "/a\\'b", "/end\\", "\\\\host\\share", "/a, b", "/a''b"])
def test_a_path_is_taken_as_it_stands(path):
    assert load([f"dataset.path={path}"]).dataset.path == path


def test_hydra_knows_no_method_that_is_gone():
    for known in (method_configs() | {"gone": MethodConfig}, method_configs()):
        with option_files.initialized(tuple(known.items())):
            named = {name.removesuffix(".yaml") for name in ConfigStore.instance().list("method")}
            assert named == {f"schema_{name}" for name in known}


def test_hydra_serves_one_thread_at_a_time():
    known = tuple(method_configs().items())

    def entered():
        with option_files.initialized(known):
            return composing

    with ThreadPoolExecutor(1) as other:
        with option_files.initialized(known):
            composing = True
            waiting = other.submit(entered)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.1)
            composing = False
        assert waiting.result() is False


def test_an_option_file_is_composed_with_the_methods_that_it_starts_from_alone(monkeypatch):
    names = {option: [name for name, _ in option_files.methods_of(option)] for option in METHODS.names()}
    assert names == {name: [name] for name in METHODS.names()}
    assert option_files.methods_of(None) == option_files.methods_of(load().method.name)
    assert option_files.methods_of("nowhere") == ()


def test_an_option_file_may_start_from_another_one_of_any_package(tmp_path, monkeypatch):
    (tmp_path / "method").mkdir()
    for name, first in (("mine", "pfa"), ("yours", "/method/mine"), ("circle", "circle")):
        (tmp_path / "method" / f"{name}.yaml").write_text(f"defaults: [{first}, _self_]\nname: {name}\n")
    monkeypatch.setattr(option_files, "option_directories", lambda: [option_files.OWN_DIRECTORY, tmp_path])
    assert option_files.methods_of("yours") == option_files.methods_of("pfa")
    assert option_files.methods_of("circle") == ()


def test_what_is_put_together_of_known_groups_is_what_hydra_composes():
    directories, methods = tuple(option_directories()), tuple(method_configs().items())
    option_files._known.cache_clear()
    wanted = [("fmnist", "gdpfed_op"), ("digits", "h2fdp"), ("cifar10-prior", "fedpcs")]
    for dataset, method in wanted:
        option_files.chosen_options({"dataset": dataset, "method": method}, directories, methods)
    mixed = [
        {"dataset": dataset, "method": method}
        for (dataset, _), (_, method) in zip(wanted, wanted[1:] + wanted[:1], strict=True)
    ]
    with patch.object(option_files, "compose", side_effect=AssertionError("all parts are known")):
        put_together = [option_files.chosen_options(options, directories, methods) for options in mixed]
    for chosen, found in zip(mixed, put_together, strict=True):
        # Nothing is known now, so Hydra composes all of it.
        option_files._known.cache_clear()
        option_files._tree.cache_clear()
        option_files._packed.cache_clear()
        composed = option_files.chosen_options(chosen, directories, methods)
        assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(composed)
        with option_files.initialized(methods):
            whole = compose("config", overrides=[f"{group}={name}" for group, name in chosen.items()])
        assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(whole)
        assert [OmegaConf.get_type(found, str(key)) for key in found] == [
            OmegaConf.get_type(composed, str(key)) for key in composed
        ]
        assert OmegaConf.is_struct(found)


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("defaults:\n  - schema\n  - _self_\nname: a\n", True),
        ("defaults:\n  - override /training: adam\n  - _self_\n", False),
        ("defaults:\n  - /training: adam\n", False),
        ("# @package _global_\nrun:\n  seed: 3\n", False),
    ],
)
def test_an_option_file_that_sets_another_group_is_left_to_hydra(tmp_path, text, alone):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "mine.yaml").write_text(text)
    assert option_files._each_group_is_alone((tmp_path,)) == alone


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("dataset.model_options={width: 16, depth: 1, width: 64}", "width"),
        ("dataset.model_options={a: {b: 1, 'b': 2}}", "b"),
        ("dataset.model_options={'a:b': 1, c: [x:y, {d: 1}], d: 2, 'a:b': 3}", "a:b"),
        (r"dataset.model_options={b\}: 1, a: 2, a: 3}", "a"),
    ],
)
def test_a_mapping_that_says_a_key_twice_is_refused(override, key):
    with pytest.raises(ConfigError, match=f"says the key '{key}' twice"):
        load([override])


def test_an_option_file_that_says_a_key_twice_is_refused_in_one_line(tmp_path, monkeypatch):
    from conf.option_files import option_directories

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "twice.yaml").write_text("seed: 1\nseed: 2\n")
    places = [*option_directories(), tmp_path]
    monkeypatch.setattr("conf.load.option_directories", lambda: places)
    with pytest.raises(ConfigError, match=r"duplicate key seed.*twice.yaml") as raised:
        load(["run=twice"])
    assert "\n" not in str(raised.value)


def test_fashion_mnist_as_public_numbers_has_the_training_of_cifar10_and_the_clients_of_its_paper():
    """Data set fmnist-prior has the default training settings of cifar10-prior, and the clients of fmnist."""
    ours, theirs, paper = (load([f"dataset={name}"]) for name in ("fmnist-prior", "cifar10-prior", "fmnist"))
    for key in ("features", "model", "clipping_norm", "local_steps", "learning_rate", "learning_rate_decay"):
        assert getattr(ours.dataset, key) == getattr(theirs.dataset, key)
    for key in ("num_clients", "num_rounds", "sampling_rate", "budgets", "batch_size"):
        assert getattr(ours.dataset, key) == getattr(paper.dataset, key)
    assert ours.dataset.against == "everyone"
