"""The papers whose tables are reproduced, by name."""

from raysim.studies.reproduce.papers.clipfl import CLIPFL
from raysim.studies.reproduce.papers.fb_nll import FB_NLL
from raysim.studies.reproduce.papers.fedfixer import FEDFIXER
from raysim.studies.reproduce.papers.fedrn import FEDRN
from raysim.studies.reproduce.papers.rcc_pfl import RCC_PFL
from raysim.studies.reproduce.tables import Paper

PAPERS: dict[str, Paper] = {
    "rcc-pfl": RCC_PFL,
    "fb-nll": FB_NLL,
    "fedfixer": FEDFIXER,
    "fedrn": FEDRN,
    "clipfl": CLIPFL,
}

__all__ = ["PAPERS"]
