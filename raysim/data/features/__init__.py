"""Label-free features of images; a file per family."""

from raysim.data.features.extractor import FEATURES, Extractor
from raysim.data.features.feature_cache import feature_file
from raysim.data.features.hog import hog
from raysim.data.features.plain import HogFeatures, PixelFeatures, enlarged
from raysim.data.features.pretrained import Lite0Features, ResNet18Features

__all__ = [
    "FEATURES",
    "Extractor",
    "HogFeatures",
    "Lite0Features",
    "PixelFeatures",
    "ResNet18Features",
    "enlarged",
    "feature_file",
    "hog",
]
