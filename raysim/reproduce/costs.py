"""What a run costs: minutes on one core of a machine without a GPU, for ``--list`` and the order.

``full`` of RCC-PFL and ``small`` are measured; ``full`` of FB-NLL is counted from the operations.
"""

from __future__ import annotations

from raysim.reproduce.recipes import Cell, Scale, Target

TRAINING_MINUTES = {
    ("rcc-pfl", "mnist", "full"): 3.0,
}
METHOD_FACTORS = {"ifca_pfl": 1.5}
"""Cost relative to plain training inside groups."""
SIMILARITY_MINUTES = 0.2
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
