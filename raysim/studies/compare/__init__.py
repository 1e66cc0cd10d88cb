"""Several methods on the same data, noise, partition and initial weights.

``plan`` says which runs there are and refuses what cannot work, ``worker`` is the process of one
run, ``table`` puts the results side by side. ``compare`` is the way in from Python.
"""

from raysim.studies.compare.in_process import compare

__all__ = ["compare"]
