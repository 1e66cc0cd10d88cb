"""A short name for how this machine computes."""

from __future__ import annotations

import hashlib

import numpy as np

from raysim.core.spectra import spectrum
from raysim.core.threads import one_thread
from raysim.seeding import stream


def numeric_fingerprint() -> str:
    """Return a digest of a small spectrum; equal on two machines: expect equal bits there."""
    with one_thread():
        values = spectrum(stream(0, "fingerprint").normal(size=(200, 64))).values
    return hashlib.sha256(np.asarray(values).tobytes()).hexdigest()[:12]
