# ruff: noqa: E501

# %% [markdown]
# # A quick tour of raysim
#
# Run it as a script (`python quick_tour.py`) or cell by cell in VS Code, Spyder or, with jupytext,
# Jupyter. It needs `pip install 'raysim[report,pandas]'`, no data and about half a minute. Lines
# that begin with `# ->` are what a cell printed; the test suite compares them.

# %%
from raysim import Experiment, load_config, load_results

SHORT = ["name=tour", "train.rounds=5", "runtime.kind=local"]  # local: in this process, without Ray

# %% [markdown]
# ## One run, round by round
#
# The bundled config `quickstart`: 12 clients with three tasks on the 8x8 digits, and a quarter of
# the labels is wrong. FB-NLL groups the clients, repairs labels, then trains one model per group.

# %%
experiment = Experiment(load_config("quickstart", SHORT))
with experiment.rounds(force=True) as rounds:
    for done in rounds:
        print(done)
# -> Round(group 1/1, ARI 1.000)
# -> Round(correct 1/1, wrong labels 0.248 -> 0.014)
# -> Round(train 1/5, accuracy 0.9040, loss 1.1291)
# -> Round(train 2/5, accuracy 0.9430, loss 0.6733)
# -> Round(train 3/5, accuracy 0.9508, loss 0.5260)
# -> Round(train 4/5, accuracy 0.9540, loss 0.4532)
# -> Round(train 5/5, accuracy 0.9610, loss 0.4093)

# %% [markdown]
# `experiment.run()` does the same at once. Leaving the loop early keeps a checkpoint, and
# `run(resume=True)` goes on from there to the same bits.

# %%
result = rounds.result
print(result)
# -> RunResult(fb_nll on digits, seed 0: accuracy 0.9610, ARI 1.000, 5 rounds; runs/tour/fb_nll/seed0)

# %% [markdown]
# ## Who belongs together
#
# R compares the clients' feature spectra. Within a task it is close to 1.

# %%
R, tasks = result.similarity, result.clients_frame()["task"].to_numpy()
same = tasks[:, None] == tasks[None, :]
print(
    f"R {R.shape}, within tasks at least {R[same].min():.2f}, between at most {R[~same].max():.2f}"
)
print("groups found", list(result.groups.values()))
# -> R (12, 12), within tasks at least 0.66, between at most 0.33
# -> groups found [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]

# %% [markdown]
# ## Other methods on the same data
#
# Same seed: the same clients, wrong labels and initial weights. (`raysim compare` does this in
# parallel, over seeds too.)

# %%
for method in ("fb_nll_minus", "single"):
    Experiment(load_config("quickstart", [*SHORT, f"method={method}"])).run(force=True)

runs = load_results("runs/tour")
table = runs.summary_frame()
print(table[["method", "accuracy", "ari", "noise_after"]].round(3).to_string(index=False))
# ->       method  accuracy  ari  noise_after
# ->       fb_nll     0.961  1.0        0.014
# -> fb_nll_minus     0.931  1.0        0.248
# ->       single     0.611  0.0        0.248

# %% [markdown]
# ## As pandas frames
#
# `to_pandas()` has one row per run and round, `clients_frame()` one per run and client.

# %%
every = runs.to_pandas()
curves = every.pivot_table(index="round", columns="method", values="accuracy")
print(curves.round(2).to_string())
# -> method  fb_nll  fb_nll_minus  single
# -> round
# -> 1         0.90          0.67    0.27
# -> 2         0.94          0.82    0.39
# -> 3         0.95          0.88    0.47
# -> 4         0.95          0.92    0.55
# -> 5         0.96          0.93    0.61

# %%
clients = runs.clients_frame()
print(clients.groupby("method")["accuracy"].agg(["mean", "min"]).round(2).to_string())
# ->               mean   min
# -> method
# -> fb_nll        0.96  0.93
# -> fb_nll_minus  0.93  0.90
# -> single        0.61  0.51

# %% [markdown]
# ## A report
#
# One page with tables and figures that opens from disk: `raysim report runs/tour` on the command
# line.

# %%
print(runs.report("tour.html"))
# -> [PosixPath('tour.html')]
