"""What a run costs: minutes of one core without a GPU, for ``--list`` and the order of the runs.

Measured on one core at 2.8 GHz. Full runs of FB-NLL and those of FedFixer and FedRN on CIFAR-10 are
counted from measured steps of their networks; ViT, CIFAR-100 and the photo sets are guesses.
Features are computed once per machine and are not in here: EfficientNet-Lite0 takes about 20
minutes for CIFAR-10.
"""

from __future__ import annotations

from raysim.studies.reproduce.recipes import Scale, method_of
from raysim.studies.reproduce.tables import Cell, Target

TRAINING_MINUTES: dict[tuple[str, str, str], float] = {
    ("rcc-pfl", "mnist", "full"): 2.0,
    ("rcc-pfl", "mnist", "small"): 0.5,
    ("rcc-pfl", "fashion_mnist", "full"): 15.0,
    ("rcc-pfl", "fashion_mnist", "small"): 3.0,
    ("rcc-pfl", "cifar10", "full"): 240.0,
    ("rcc-pfl", "cifar10", "small"): 50.0,
    ("fb-nll", "cifar10", "full"): 7900.0,
    ("fb-nll", "cifar10", "small"): 4.0,
    ("fb-nll", "svhn", "full"): 6100.0,
    ("fb-nll", "svhn", "small"): 6.0,
    ("fedfixer", "mnist", "full"): 30.0,
    ("fedfixer", "mnist", "small"): 6.0,
    ("fedfixer", "cifar10", "full"): 11_500.0,
    ("fedfixer", "cifar10", "small"): 3.0,
    ("fedfixer", "clothing1m", "full"): 56_000.0,
    ("fedfixer", "clothing1m", "small"): 200.0,
    ("fedrn", "cifar10", "full"): 900.0,
    ("fedrn", "cifar10", "small"): 6.0,
    ("fedrn", "cifar100", "full"): 6_000.0,
    ("fedrn", "cifar100", "small"): 6.0,
    ("fedrn", "mini_webvision", "full"): 33_000.0,
    ("fedrn", "mini_webvision", "small"): 6.0,
    ("clipfl", "cifar10", "full"): 3_600.0,
    ("clipfl", "cifar10", "small"): 5.0,
    ("clipfl", "cifar100", "full"): 3_600.0,
    ("clipfl", "cifar100", "small"): 5.0,
}
"""FedAvg, or plain training inside groups, by (paper, dataset, scale)."""
METHOD_FACTORS = {"ifca_pfl": 1.5, "rhfl": 2.0, "rhfl_fb_nll": 2.0}
"""Cost relative to that: losses of all models, logits of the public images."""
PAPER_FACTORS: dict[str, dict[str, float]] = {
    # five steps of the personal model per batch; sweeps over all clients and twice the rounds
    "fedfixer": {"fedfixer": 6.0, "cores2_local": 2.5, "cores2_global": 1.3, "fedcorr": 2.5},
    "fedrn": {"fedrn": 1.4, "co_teaching": 2.1, "selfie": 1.8, "dividemix": 7.0},
    "clipfl": {"clipfl": 1.0, "fedcorr": 1.2, "rhfl": 10.0, "fedlsr": 2.2},
}
"""The same by registered method, for papers with rows of their own."""
SIMILARITY_MINUTES = 0.1
UNKNOWN_MINUTES = 10.0


def run_minutes(target: Target, cell: Cell, scale: Scale) -> float:
    """Return the estimated minutes of one run."""
    if not target.trains:
        return SIMILARITY_MINUTES
    minutes = TRAINING_MINUTES.get((target.paper, cell.dataset, scale), UNKNOWN_MINUTES)
    factors = PAPER_FACTORS.get(target.paper, METHOD_FACTORS)
    return minutes * factors.get(method_of(target.paper, cell.method), 1.0)


def table_hours(target: Target, scale: Scale, seeds: int) -> float:
    """Return the estimated core hours of a whole table."""
    return seeds * sum(run_minutes(target, cell, scale) for cell in target.cells) / 60
