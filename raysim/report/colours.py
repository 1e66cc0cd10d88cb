"""Colours that colour-blind readers can tell apart, also in print (the set of Okabe and Ito)."""

from __future__ import annotations

METHOD_COLOURS = [
    "#0072B2",  # blue
    "#D55E00",  # vermilion
    "#009E73",  # bluish green
    "#CC79A7",  # reddish purple
    "#E69F00",  # orange
    "#56B4E9",  # sky blue
    "#000000",  # black
    "#B8A800",  # yellow, darkened: the original is too light for lines on paper
]
"""One per method, by its place in ``Report.methods``; from the ninth on they repeat."""

GROUP_COLOURS = METHOD_COLOURS
"""One per group of clients, by its number."""

HEAT = "viridis"
"""The colour scale of heat maps, by the name that matplotlib and plotly share."""


def method_colour(methods: list[str] | tuple[str, ...], method: str) -> str:
    """Give the colour of a method; grey where it is not among ``methods``."""
    if method not in methods:
        return "#666666"
    return METHOD_COLOURS[list(methods).index(method) % len(METHOD_COLOURS)]
