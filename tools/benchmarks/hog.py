"""``bench hog``: HoG of 32x32 colour images beside scikit-image, one thread each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

from benchmarks.memory import TreeMemory
from benchmarks.options import Options
from benchmarks.report import Check, Report, compared, say

SPEEDUP = 10.0
VALUES_DIFFER_BY = 1e-6
ORIENTATIONS, CELL = 9, 8
TRIALS = 5
"""Timed calls of raysim per repeat; one is too short to trust."""


def run(options: Options) -> Report:
    """Measure bytes (what datasets hold) and float64 images."""
    from threadpoolctl import threadpool_limits

    report = Report("hog")
    # Datasets hold bytes, whose gradients come from a table; the speed of float64 is only told.
    count = 64 if options.quick else 2000
    colour = pictures(count)
    with threadpool_limits(limits=1):
        _compare("uint8 32x32x3", colour, options, report)
        _compare("float64 32x32x3", colour.astype(np.float64) / 255, options, report)
    return report


def _compare(name: str, images: np.ndarray, options: Options, report: Report) -> None:
    say(f"{name}: {len(images)} images, {options.repeats} times")
    ours, theirs = [], []
    with TreeMemory(os.getpid()) as memory:
        mine, reference = raysim_rows(images), skimage_rows(images)
        for _ in range(options.repeats):
            ours.append([seconds_of(raysim_rows, images) for _ in range(TRIALS)])
            theirs.append([seconds_of(skimage_rows, images)])
    row, ratio = compared(name, ours, theirs, memory_bytes=memory.peak)
    report.rows.append(row)
    report.facts[f"{name}, images per second"] = {
        "raysim": len(images) / row.raysim_s,
        "scikit-image": len(images) / row.reference_s,
    }
    worst = float(np.abs(mine - reference).max())
    if images.dtype == np.uint8:
        report.checks.append(Check(f"{name}: times faster", 1 / ratio, SPEEDUP, at_least=True))
    report.checks.append(Check(f"{name}: values", worst, VALUES_DIFFER_BY, "max abs", timed=False))


def raysim_rows(images: np.ndarray) -> np.ndarray:
    """Return HoG rows of all images at once."""
    from raysim.data.features import hog

    rows: np.ndarray = hog(images, ORIENTATIONS, CELL, 1)
    return rows


def skimage_rows(images: np.ndarray) -> np.ndarray:
    """Return HoG rows by scikit-image, one image after another."""
    from skimage.feature import hog

    return np.stack(
        [
            hog(
                image,
                orientations=ORIENTATIONS,
                pixels_per_cell=(CELL, CELL),
                cells_per_block=(1, 1),
                block_norm="L2-Hys",
                channel_axis=-1,
            )
            for image in images
        ]
    )


def seconds_of(work: Callable[[np.ndarray], object], images: np.ndarray) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    work(images)
    return time.perf_counter() - started


def pictures(count: int) -> np.ndarray:
    """Return smooth random colour images with a little noise, (N, 32, 32, 3) uint8."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 255, (count, 9, 9, 3))
    place = np.arange(32) / 4
    low, share = place.astype(int), place % 1
    for axis in (1, 2):
        weight = share.reshape((-1, 1, 1) if axis == 1 else (-1, 1))
        below, above = np.take(coarse, low, axis), np.take(coarse, low + 1, axis)
        coarse = below * (1 - weight) + above * weight
    return np.clip(coarse + rng.normal(0, 4, coarse.shape), 0, 255).astype(np.uint8)
