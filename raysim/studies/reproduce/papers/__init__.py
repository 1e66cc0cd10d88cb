"""The papers whose tables have rows and columns of their own."""

from raysim.studies.reproduce.papers.clipfl import CLIPFL
from raysim.studies.reproduce.papers.fedfixer import FEDFIXER
from raysim.studies.reproduce.papers.fedrn import FEDRN
from raysim.studies.reproduce.tables import Paper

PAPERS: dict[str, Paper] = {"fedfixer": FEDFIXER, "fedrn": FEDRN, "clipfl": CLIPFL}

__all__ = ["CLIPFL", "FEDFIXER", "FEDRN", "PAPERS"]
