"""Label-free features of images; a file per family."""

from raysim.data.features.extractor import FEATURES, Extractor, PixelFeatures
from raysim.data.features.feature_cache import feature_file
from raysim.data.features.gradients import HogFeatures, enlarged, hog
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
