"""Label noise: what clients are given instead of the true labels; a file per family."""

from raysim.data.noise.file import FileNoise
from raysim.data.noise.human import Human
from raysim.data.noise.labels import NOISE, Noise, NoisyLabels, NoNoise
from raysim.data.noise.task_dependent import ClassDependent, ClassIndependent
from raysim.data.noise.uniform import Uniform

__all__ = [
    "NOISE",
    "ClassDependent",
    "ClassIndependent",
    "FileNoise",
    "Human",
    "NoNoise",
    "Noise",
    "NoisyLabels",
    "Uniform",
]
