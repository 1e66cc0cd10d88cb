"""ClipFL (Morafah et al., TOMPECS 2025): Tables 1 to 4 and Figures 9 to 11.

One run each; accuracies are means over the last ten rounds. The figures print no numbers.
"""

from __future__ import annotations

from raysim.studies.reproduce.tables import Overrides, Paper, Rows, Target, Value, printed_grid

# All rows share ClipFL's loss, which is a setting of method clipfl: with nobody left out and nobody
# pruned it is the plain optimiser.
VANILLA = ("method.score_rounds=1", "method.kept=1000", "method.prune_rate=0")
# The small setting's 0.1 fits that loss, whose gradients temperature 10 makes a tenth as large.
TENTH_LR = "train.lr=0.01"
OPTIMIZERS: dict[str, Overrides] = {
    "fedavg": (),
    "fedprox": ("train.proximal=0.001",),
    "fednova": ("server.optimizer=fednova",),
    "fedadam": ("server.optimizer=fedadam", "server.lr=0.01", "server.tau=0.001"),
}
ROWS: Rows = {
    "clipfl": {"method": ("clipfl",)},
    # 8 turns of at most 13 clients, then 75 and 37 of the 120 rounds
    # (raysim/docs/sheets/fedcorr.md, "In ClipFL's Table 3").
    "fedcorr": {
        "both": ("method.iterations=1", "method.sweep_fraction=0.13"),
        "full": ("method.sweep_rounds=8", "method.finetune_rounds=75"),
        "small": (TENTH_LR, "method.sweep_rounds=2", "method.finetune_rounds=18"),
    },
    "rhfl": {"both": ("method.confidence=0.5",)},
    "fedlsr": {
        "both": ("method.consistency=0.25",),
        "full": ("method.warmup_rounds=40",),
        "small": (TENTH_LR, "method.warmup_rounds=10"),
    },
    "fedavg+clipfl_synthetic": {
        "method": ("clipfl",),
        "both": ("method.validation.kind=generated",),
        # 10,000 images, twice as many as there are clean ones
        "full/cifar10": ("method.validation.per_class=1000",),
        "full/cifar100": ("method.validation.per_class=100",),
        "small/cifar10": ("method.validation.per_class=200",),
        "small/cifar100": ("method.validation.per_class=40",),
    },
}
for _name, _how in OPTIMIZERS.items():
    ROWS[_name] = {"method": ("clipfl",), "both": (*_how, *VANILLA)}
    ROWS[f"{_name}+clipfl"] = {"method": ("clipfl",), "both": _how}

PRE_ROUNDS = {"full": {30: 30, 50: 50, 80: 80}, "small": {30: 8, 50: 13, 80: 20}}
POST_ROUNDS = {"full": 40, "small": 10}
FIGURE9_ROWS: tuple[str, ...] = ()
for _pre in (30, 50, 80):
    for _kept in (2, 3, 5):
        _row = f"clipfl_t{_pre}_m{_kept}"
        FIGURE9_ROWS += (_row,)
        ROWS[_row] = {"method": ("clipfl",), "both": (f"method.kept={_kept}",)}
        for _scale, _rounds in PRE_ROUNDS.items():
            ROWS[_row][_scale] = (
                f"method.score_rounds={_rounds[_pre]}",
                f"train.rounds={_rounds[_pre] + POST_ROUNDS[_scale]}",
            )
RATES = tuple(f"0.{tenth}" for tenth in range(1, 10))
FIGURE10_ROWS: Rows = {
    f"clipfl_m{kept}_p{rate}": {
        "method": ("clipfl",),
        "both": (f"method.kept={kept}", f"method.prune_rate={rate}"),
    }
    for kept in (3, 5)
    for rate in RATES
}
ROWS |= FIGURE10_ROWS


def _noise(rate: str, noisy: str) -> str:
    return f"data.noise={{kind: symmetric, rate: {rate}, noisy_fraction: {noisy}}}"


COLUMNS: dict[str, Overrides] = {
    "iid": ("data.partition.kind=iid",),
    "dir0.5": (
        "data.partition.kind=dirichlet",
        "data.partition.alpha=0.5",
        "data.partition.min_client_size=15",
    ),
    "mu0.5": (_noise("0.5", "0.5"),),
    "mu0.8": (_noise("0.8", "0.5"),),
}
FIGURE11_COLUMNS = tuple(f"iid/noisy{noisy}_mu{mu}" for noisy in ("0.3", "0.8") for mu in RATES)
for _column in FIGURE11_COLUMNS:  # p is the share of noisy clients
    _noisy, _mu = _column.removeprefix("iid/noisy").split("_mu")
    COLUMNS[_column.removeprefix("iid/")] = (_noise(_mu, _noisy), f"method.prune_rate={_noisy}")

BOTH = ("cifar10", "cifar100")
SPLITS = tuple(f"{split}/{mu}" for split in ("iid", "dir0.5") for mu in ("mu0.5", "mu0.8"))
ORDER = ("cifar10/iid", "cifar100/iid", "cifar10/dir0.5", "cifar100/dir0.5")
"""The printed columns go by split, data set and noise."""
TABLE1 = """
fedavg         55.64 42.18 42.06 31.71 43.37 34.59 40.16 31.35
fedavg+clipfl  69.42 59.14 43.20 41.21 49.56 48.34 42.74 37.02
fedprox        58.64 45.11 41.16 29.42 46.25 33.50 38.48 29.37
fedprox+clipfl 68.99 68.92 39.86 45.13 54.85 53.93 40.81 40.16
fednova        56.55 40.62 43.67 32.11 46.86 34.25 39.85 29.56
fednova+clipfl 67.48 62.00 47.23 39.71 53.03 49.82 43.69 34.72
fedadam        53.97 42.35 38.08 22.51 41.39 30.88 32.33 23.50
fedadam+clipfl 68.99 61.16 35.35 34.14 40.39 49.84 36.27 34.36
"""
TABLE2 = """
fedavg+clipfl  98 94 94 92 72 80 84 90
fedprox+clipfl 94 94 98 98 74 86 86 92
fednova+clipfl 96 96 96 94 66 82 92 92
fedadam+clipfl 94 96 88 92 74 92 94 92
"""
TABLE3 = """
fedavg  42.16 35.25 21.06 16.99 34.48 26.23 17.92 14.64
fedcorr 47.10 41.32 20.22 16.81 35.79 39.10 18.33 14.88
rhfl    23.53 19.82 4.83 3.96 19.39 18.07 4.64 4.04
fedlsr  - - - - - - - -
clipfl  49.48 48.73 20.66 20.31 38.62 38.50 19.12 18.36
"""  # FedLSR diverged
TABLE4 = """
fedavg                  55.64 42.18 42.06 31.71 43.37 34.59 40.16 31.35
fedavg+clipfl           69.42 59.14 43.20 41.21 49.56 48.34 42.74 37.02
fedavg+clipfl_synthetic 69.16 58.80 42.83 40.63 49.24 47.93 42.26 36.37
"""


def _table(number: int, title: str, text: str, value: Value = "last10") -> Target:
    places = [f"{place}/{mu}" for place in ORDER for mu in ("mu0.5", "mu0.8")]
    grid = printed_grid(text, places, dataset="-")  # a place names its data set itself
    return Target(
        f"clipfl/table{number}",
        title,
        "accuracy",
        datasets=BOTH,
        methods=tuple(line.split()[0] for line in text.strip().splitlines()),
        columns=SPLITS,
        compares=(value,),
        printed={address.removeprefix("-/"): number for address, number in grid.items()},
    )


def _figure(
    number: int,
    title: str,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    values: tuple[Value, ...] = ("last10",),
) -> Target:
    return Target(
        f"clipfl/figure{number}",
        title,
        "accuracy",
        datasets=("cifar10",),
        methods=rows,
        columns=columns,
        compares=values,
    )


CLIPFL = Paper(
    targets=(
        _table(1, "accuracy with and without pruning", TABLE1),
        _table(2, "noisy clients among the pruned", TABLE2, "noisy_clients"),
        _table(3, "accuracy beside other methods", TABLE3),
        _table(4, "accuracy with a synthetic clean set", TABLE4),
        _figure(
            9,
            "rounds before pruning and clients merged",
            FIGURE9_ROWS,
            ("iid/mu0.5", "iid/mu0.8"),
            ("last10", "noisy_clients"),
        ),
        _figure(10, "share of clients pruned", tuple(FIGURE10_ROWS), ("iid/mu0.5",)),
        _figure(11, "noise rate", ("fedavg", "fedavg+clipfl"), FIGURE11_COLUMNS),
    ),
    seeds=1,
    columns=COLUMNS,
    rows=ROWS,
    deviations={
        "": "the clean set has the same number of images of every class; FedAvg and the others "
        "without pruning are method clipfl with nobody left out, which has the paper's loss",
        "full": "ViT-Tiny has 4x4 patches on 32x32 images and random first weights; the paper's "
        "has 16x16 on 224x224 and, in Tables 1, 2 and 4, ImageNet's",
        "rhfl": "the public images are the server's clean ones; the paper takes CIFAR-100",
        "fedcorr": "FedCorr's own loss; the paper may mean smoothed labels",
        "fedlsr": "the loss of FedLSR's paper; ClipFL ran the released code, which diverged",
        "fedavg+clipfl_synthetic": "the paper's validation images come from Stable Diffusion; here "
        "from a Gaussian per class (method.validation.kind: file reads others)",
    },
)
