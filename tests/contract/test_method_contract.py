"""The contract every registered method passes, without Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import gc

import numpy as np
import pytest
import yaml

from raysim.config import config_yaml, load_config
from raysim.data.noise import NoisyLabels
from raysim.data.partition import Split
from raysim.data.split_file import export_split
from raysim.data.world import DriverData
from raysim.experiment import Experiment
from raysim.methods import METHODS

METHOD_NAMES = METHODS.names()
SIMILARITY = ["fedcorr_fb_nll", "clipfl_fb_nll", "rhfl_fb_nll"]
LABEL_AGNOSTIC = ["fb_nll", "fb_nll_minus", "rcc_pfl", *SIMILARITY]
GROUPED = [*LABEL_AGNOSTIC, "ifca", "ifca_pfl", "optimum", "local_only"]
ONE_TEMPLATE = ["fb_nll", "fb_nll_minus", "rcc_pfl", "optimum", "single", "local_only"]
"""Methods of ``clustered_stages``, whose groups all start from the same weights."""
QUICK = ("train.rounds=4", "train.epochs=1")


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_config_round_trips_through_yaml(method):
    config = load_config("quickstart", [f"method={method}", "train.lr=0.02"])

    again = load_config(yaml.safe_load(config_yaml(config)))

    assert again == config


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_the_saved_config_repeats_the_run_to_the_bit(alone, method, tmp_path):
    first = alone(method, base=QUICK)

    saved = load_config(f"{first['run_dir']}/config.yaml", [f"output={tmp_path / 'again'}"])
    second = Experiment(saved).run()

    assert second.summary["digest"] == first["digest"]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_learns_digits_above_chance(run_tiny, method):
    result = run_tiny(method, base=("train.rounds=5",))

    assert result.accuracy > 0.3  # ten classes


@pytest.mark.parametrize("method", GROUPED)
def test_groups_differ_from_one_model_for_all(alone, method):
    ours, single = alone(method, base=QUICK), alone("single", base=QUICK)

    assert not set(single["digest"]["models"].values()) & set(ours["digest"]["models"].values())
    assert ours["groups"] != single["groups"]


def test_correction_changes_labels_and_models(alone):
    with_it, without = alone("fb_nll", base=QUICK), alone("fb_nll_minus", base=QUICK)

    assert with_it["groups"] == without["groups"]
    assert with_it["labels"]["noise_after"] < without["labels"]["noise_after"]
    assert with_it["digest"]["models"] != without["digest"]["models"]


@pytest.mark.parametrize("method", LABEL_AGNOSTIC)
def test_labels_do_not_change_label_agnostic_groups(run_tiny, method):
    noises = ("none", "{kind: class_independent, rate: 0.4}", "{kind: uniform, rho: 1.0}")
    runs = [run_tiny(method, f"data.noise={noise}", base=QUICK) for noise in noises]

    assert runs[0].summary["groups"] == runs[1].summary["groups"] == runs[2].summary["groups"]
    assert runs[0].summary["labels"]["noise_before"] == 0.0


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_the_order_of_the_client_list_does_not_matter(run_tiny, alone, method, monkeypatch):
    straight = alone(method, base=QUICK)
    records = DriverData.client_records
    monkeypatch.setattr(DriverData, "client_records", lambda self: tuple(reversed(records(self))))

    reversed_ = run_tiny(method, base=QUICK)

    assert reversed_.summary["digest"] == straight["digest"]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_one_client_runs(run_tiny, method):
    result = run_tiny(
        method,
        "data.partition={kind: tasks, clients: 1, groups: 1, impurity_rate: 0.0}",
        "data.noise={kind: uniform, rho: 1.0, beta: 0.2}",
        base=QUICK,
    )

    assert len(result.summary["accuracy"]["per_client"]) == 1


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_as_many_groups_as_clients_run(run_tiny, method):
    result = run_tiny(method, "data.partition={kind: tasks, clients: 5, groups: 5}", base=QUICK)

    assert len(result.summary["groups"]) == 5


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_one_class_and_one_sample_clients_run(run_tiny, method, tmp_path, caplog):
    path = odd_clients(tmp_path)
    files = (f"data.partition={{kind: file, path: {path}}}", "data.noise={kind: file}")

    result = run_tiny(method, *files, "data.server.per_class=20", base=QUICK)

    capped = "capped at 1 for all clients: client 0 has no more samples" in caplog.text
    assert capped == (method in LABEL_AGNOSTIC)
    assert len(result.summary["accuracy"]["per_client"]) == 4


@pytest.mark.parametrize("method", ONE_TEMPLATE)
def test_a_group_nobody_trains_keeps_its_model(run_tiny, method):
    result = run_tiny(method, "train.participation=0.1", base=("train.rounds=1",))

    stored = list(result.summary["digest"]["models"].values())
    assert len(stored) == len(set(result.summary["groups"]))
    if (
        method != "single"
    ):  # one of 12 clients trained, so the other groups hold the initial weights
        assert len(set(stored)) == 2


@pytest.mark.filterwarnings("ignore::FutureWarning")  # gc hands out torch's deprecated objects
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_true_labels_are_out_of_a_clients_reach(run_tiny, method):
    found: list[np.ndarray] = []
    truth: list[np.ndarray] = []

    def look(event) -> None:
        if event.kind == "round" and not found:
            from raysim.runtime.cohort import Cohort

            for cohort in (o for o in gc.get_objects() if isinstance(o, Cohort)):
                found.extend(arrays_below(cohort))
            if found:
                raise KeyboardInterrupt  # seen enough

    config = load_config("quickstart", [f"method={method}"])
    data = DriverData(config.data, config.seed)
    truth.extend([data.true_labels, *(data.true_labels[ids] for ids in data.split.clients)])
    with contextlib.suppress(KeyboardInterrupt):
        run_tiny(method, base=QUICK, listeners=[look])

    assert any(a.shape == truth[1].shape for a in found)  # the walk reached the given labels
    assert not any(np.array_equal(a, t) for a in found for t in truth)


def arrays_below(root):
    """Every array reachable from an object, through containers, slots and attributes."""
    seen: set[int] = set()
    stack, arrays = [root], []
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type | str | bytes | int | float):
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            arrays.append(item)
            continue
        if type(item).__module__.split(".")[0] not in ("raysim", "builtins", "collections"):
            continue
        stack.extend(gc.get_referents(item))
        if dataclasses.is_dataclass(item):
            stack.extend(getattr(item, f.name) for f in dataclasses.fields(item))
    return arrays


def odd_clients(folder):
    """A split with a one-sample client, a one-class client and two ordinary ones."""
    config = load_config("quickstart")
    data = DriverData(config.data, config.seed)
    labels, used = data.true_labels, set(data.split.server_ids.tolist())
    free = [i for i in range(len(labels)) if i not in used]
    evens = [i for i in free if labels[i] in (0, 2, 4)]
    odds = [i for i in free if labels[i] in (3, 5, 7, 9)]
    ones = [i for i in free if labels[i] == 0]
    clients = (evens[60:61], [i for i in ones if i in evens[:60]], evens[61:160], odds[:100])
    split = Split(
        clients=tuple(np.array(c, dtype=np.int64) for c in clients),
        tasks=((0, 2, 4), (3, 5, 7, 9)),
        task_of=np.array([0, 0, 0, 1]),
        server_ids=data.split.server_ids,
    )
    given = tuple(labels[c] for c in split.clients)
    zeros = np.zeros(4)
    noisy = NoisyLabels(
        given=given, rate=zeros, realised=zeros, is_noisy=zeros > 0, target=np.full(4, -1)
    )
    path = folder / "odd.npz"
    export_split(path, split=split, noisy=noisy, dataset="digits", digest=data.store.digest, seed=0)
    return path
