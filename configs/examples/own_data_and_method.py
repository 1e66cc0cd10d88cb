# %% [markdown]
# # Your own data, your own method
#
# Vibrations of machines, measured at several sites, become a dataset; a method that starts with
# one model for all and splits it later becomes a method. Both live in this file. It needs
# `pip install 'raysim[pandas]'` and about ten seconds. Lines that begin with `# ->` are what a cell
# printed; the test suite compares them.

# %%
from dataclasses import replace
from pathlib import Path

import numpy as np

from raysim import DATASETS, METHODS, Experiment, load_config, load_results
from raysim.data.datasets import Arrays, in_memory
from raysim.errors import ConfigError, DataError
from raysim.methods import one_group
from raysim.protocols import Stage
from raysim.settings import check, settings
from raysim.steps.group_training import train_round
from raysim.steps.grouping import GroupingSettings, group_by_similarity

# %% [markdown]
# ## A dataset
#
# Any arrays will do. Here: 6 faults, 64 values per measurement, written to one file.

# %%
FAULTS = ("balance", "bearing", "belt", "gear", "motor", "valve")


def measure(count, rng):
    time = np.linspace(0, 1, 64)
    labels = np.arange(count) % len(FAULTS)
    phase = rng.uniform(0, 0.15, (count, 1))
    waves = np.sin(2 * np.pi * (labels[:, None] + 2) * (time + phase)) * (1 - 0.5 * time)
    noisy = waves + rng.normal(0, 0.4, waves.shape)
    return noisy.astype(np.float32).reshape(count, 1, 64, 1), labels  # (N, H, W, C)


rng = np.random.default_rng(0)
train, test = measure(1200, rng), measure(300, rng)
np.savez("faults.npz", x=train[0], y=train[1], x_test=test[0], y_test=test[1])

# %% [markdown]
# A dataset is a settings class with four methods. `sources` names the files: raysim keeps a copy
# in its cache and makes it again when they change.


# %%
@DATASETS.register("faults")
@settings
class Faults:
    """Vibrations of machines with six faults."""

    def ensure(self, root):
        if not self.sources(root)[0].exists():
            raise DataError(f"{self.sources(root)[0]} is missing; measure first")

    def sources(self, root):
        return [(root or Path()) / "faults.npz"]

    def load(self, root, new_array=in_memory):
        with np.load(self.sources(root)[0]) as file:
            return Arrays(
                train_images=file["x"],
                train_labels=file["y"],
                test_images=file["x_test"],
                test_labels=file["y_test"],
                class_names=FAULTS,
                mean=(0.0,),
                std=(1.0,),
            )

    def tasks(self, groups):
        return None  # no published tasks: classes are split evenly


# %% [markdown]
# ## A method
#
# Three stages of ready-made steps, and one step of our own between them. A class that is
# registered in a notebook can be used at once; for the command line put it into a module
# (`raysim/docs/methods.md`).


# %%
@METHODS.register("split_later")
@settings
class SplitLater:
    """One model for all first; then one per group, starting from it."""

    together: int = 2
    """Rounds before the split."""
    grouping: GroupingSettings = GroupingSettings()
    privileges = ()  # no true task, no true label
    uses = ("grouping",)  # features of the clients

    def check(self, config, *, classes, dimensions):
        last = config.train.rounds - 1
        fits = 1 <= self.together <= last
        check(fits, "method.together", f"must be in 1..{last}", got=self.together)
        self.grouping.check(config, dimensions["grouping"])

    def stages(self, config):
        return (
            Stage("all", 1, one_group),
            Stage("together", self.together, train_round),
            Stage("group", 1, self.split),
            Stage("train", config.train.rounds - self.together, train_round),
        )

    def split(self, context, state):
        shared = state.models["group/0"]
        state = group_by_similarity(self.grouping)(context, replace(state, models={}))
        names = [f"group/{g}" for g in sorted(set(state.groups.values()))]
        return replace(state, models=dict.fromkeys(names, shared))


# %% [markdown]
# ## Run it beside others
#
# Eight sites, two kinds of plants, 30 % wrong labels.

# %%
SITES = [
    "name=faults",
    "data.dataset=faults",
    "data.root=.",
    "data.features=pixels",
    "data.partition={kind: tasks, clients: 8, groups: 2}",
    "data.noise={kind: class_independent, rate: 0.3}",
    "train.rounds=6",
    "runtime.kind=local",
]
config = load_config("quickstart", [*SITES, "method=split_later"])
with Experiment(config).rounds(force=True) as rounds:
    for done in rounds:
        print(done)
for method in ("fb_nll", "single"):
    Experiment(load_config("quickstart", [*SITES, f"method={method}"])).run(force=True)
# -> Round(all 1/1, ARI 0.000)
# -> Round(together 1/2, accuracy 0.3500, loss 1.6326)
# -> Round(together 2/2, accuracy 0.4667, loss 1.5320)
# -> Round(group 1/1, ARI 1.000)
# -> Round(train 1/4, accuracy 0.6133, loss 1.4755)
# -> Round(train 2/4, accuracy 0.6567, loss 1.4060)
# -> Round(train 3/4, accuracy 0.6900, loss 1.3680)
# -> Round(train 4/4, accuracy 0.7067, loss 1.3387)

# %%
table = load_results("runs/faults").summary_frame()
shown = table[["method", "accuracy", "ari", "noise_after", "up_bytes"]].round(2)
print(shown.to_string(index=False))
# ->      method  accuracy  ari  noise_after  up_bytes
# ->      fb_nll      0.77  1.0         0.04    222592
# ->      single      0.62  0.0         0.30     74880
# -> split_later      0.71  1.0         0.30    198016

# %% [markdown]
# Wrong settings are refused before anything starts, those of your own method too:

# %%
try:
    config = load_config("quickstart", [*SITES, "method={name: split_later, together: 9}"])
    Experiment(config).prepare()
except ConfigError as wrong:
    print(wrong)
# -> method.together must be in 1..5, got 9

# %% [markdown]
# ## Data that lies with its clients
#
# One file per client instead of a class: images and the labels as they are, right or wrong. Beside
# them the server's few clean samples and a public test set. Clients with the same classes have the
# same task. Nobody knows the true labels here, so nothing is scored against them.

# %%
Path("sites").mkdir(exist_ok=True)
for site in range(8):
    mine = np.flatnonzero((train[1] // 3 == site % 2) & (np.arange(1200) // 150 == site))
    any_fault = 3 * (site % 2) + rng.integers(0, 3, len(mine))
    given = np.where(rng.random(len(mine)) < 0.3, any_fault, train[1][mine])
    np.savez(f"sites/site{site}.npz", images=train[0][mine], labels=given)
np.savez("sites/server.npz", images=test[0][:120], labels=test[1][:120])
np.savez("sites/test.npz", images=test[0][120:], labels=test[1][120:])

OWN = [
    "name=sites",
    "data.root=sites",
    "data.dataset=client_files",
    "data.partition={kind: given, root: sites}",
    "data.noise=none",
    "data.features=pixels",
    "train.rounds=6",
    "runtime.kind=local",
]
result = Experiment(load_config("quickstart", OWN)).run(force=True)
shown = result.clients_frame()[["client", "task", "group", "samples", "accuracy"]].round(2)
print(shown.to_string(index=False))
# ->  client  task  group  samples  accuracy
# ->       0     0      0       75      0.87
# ->       1     1      1       75      0.54
# ->       2     0      0       75      0.87
# ->       3     1      1       75      0.54
# ->       4     0      0       75      0.87
# ->       5     1      1       75      0.54
# ->       6     0      0       75      0.87
# ->       7     1      1       75      0.54
