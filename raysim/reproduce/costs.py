"""What a run costs: minutes of one core without a GPU, for ``--list`` and the order of the runs.

Measured on one core at 2.8 GHz; the full FB-NLL runs are counted from measured steps of their
networks. Features are computed once per machine and are not in here: EfficientNet-Lite0 takes about
20 minutes for CIFAR-10.
"""

from __future__ import annotations

from raysim.reproduce.recipes import Cell, Scale, Target

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
}
"""Plain training inside groups, by (paper, dataset, scale)."""
METHOD_FACTORS = {"ifca_pfl": 1.5, "rhfl": 2.0, "rhfl_fb_nll": 2.0}
"""Cost relative to that: losses of all models, logits of the public images."""
SIMILARITY_MINUTES = 0.1
UNKNOWN_MINUTES = 10.0


def run_minutes(target: Target, cell: Cell, scale: Scale) -> float:
    """Return the estimated minutes of one run."""
    if target.kind == "similarity":
        return SIMILARITY_MINUTES
    minutes = TRAINING_MINUTES.get((target.paper, cell.dataset, scale), UNKNOWN_MINUTES)
    return minutes * METHOD_FACTORS.get(cell.method, 1.0)


def table_hours(target: Target, scale: Scale, seeds: int) -> float:
    """Return the estimated core hours of a whole table."""
    return seeds * sum(run_minutes(target, cell, scale) for cell in target.cells) / 60
