"""Frozen ImageNet networks as feature extractors: ResNet-18 and EfficientNet-Lite0.

raysim/docs/sheets/datasets.md, "Feature extractors", says where they come from.

Both read bytes as they are and floating-point images as values in [0, 1]; a single channel is
repeated. Batches have one shape, the last one padded, and one thread computes them unless told
otherwise, so that a row has the same bits whatever images come with it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from raysim.core.threads import torch_device
from raysim.data.datasets import data_root
from raysim.data.datasets.image_folder import IMAGENET
from raysim.data.features.extractor import FEATURES, Extractor, ImageShape
from raysim.errors import DataError
from raysim.settings import In, check, settings

if TYPE_CHECKING:
    import torch

    Network = Callable[[torch.Tensor], torch.Tensor]

LITE0_FILE = "weights/efficientnet-lite0-57934424.pth"
RESNET18_FILE = "resnet18-f37072fd.pth"  # torchvision's IMAGENET1K_V1


@settings
class ImageNetFeatures(Extractor):
    """What the extractors share: the settings, the batches, and a file of weights."""

    width: ClassVar[int]
    """Length of a feature row."""

    weights: str | None = None
    size: Annotated[int, In("[32, inf)")] = 224
    """Side to which images are resized."""
    batch_size: Annotated[int, In("[1, inf)")] = 32
    threads: Annotated[int, In("[1, inf)")] = 1
    """Torch threads; other values change the last bits."""

    @abstractmethod
    def default_weights(self) -> Path:
        """Return the file of weights that is used when none is set."""

    @abstractmethod
    def network(self, path: Path) -> Network:
        """Return the network with the weights in ``path``."""

    def path(self) -> Path:
        return self.default_weights() if self.weights is None else Path(self.weights).expanduser()

    def dimension(self, image_shape: ImageShape) -> int:
        do = "use hog or pixels for such images"
        rule = f"{self.choice_name} needs images with 1 or 3 channels"
        check(image_shape[2] in (1, 3), "data.features", rule, got=image_shape, do=do)
        return self.width

    def extract(self, images: np.ndarray) -> np.ndarray:
        """Return feature rows (N, width) float32, computed in batches of one shape."""
        import torch

        self.check_available()
        network = self.network(self.path())
        rows = np.empty((len(images), self.width), np.float32)
        batch = np.zeros((self.batch_size, *images.shape[1:]), images.dtype)
        threads_before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode():
                for start in range(0, len(images), self.batch_size):
                    part = images[start : start + self.batch_size]
                    batch[: len(part)] = part
                    pixels = _resized(torch.from_numpy(batch).to(torch_device()), self.size)
                    rows[start : start + len(part)] = network(pixels)[: len(part)].cpu().numpy()
        finally:
            torch.set_num_threads(threads_before)
        return rows

    def fingerprint(self) -> str:
        version = importlib.metadata.version("torch")
        return (
            f"{self.choice_name}/1 size={self.size} batch={self.batch_size} "
            f"threads={self.threads} torch={version} {self.source()}"
        )

    def source(self) -> str:
        """Return what names the weights: the first half of their file's sha256."""
        path = self.path()
        try:
            stat = path.stat()
        except OSError as error:
            reason = error.strerror
            raise DataError(f"data.features.weights: cannot read {path} ({reason})") from error
        return _digest_of(str(path), stat.st_size, stat.st_mtime_ns)


@FEATURES.register("resnet18")
@settings
class ResNet18Features(ImageNetFeatures):
    """Pooled activations of torchvision's ResNet-18, d = 512, with ImageNet weights (FB-NLL)."""

    width: ClassVar[int] = 512

    weights: str | None = None
    """File with a state_dict; null: torchvision's IMAGENET1K_V1, downloaded once."""

    def source(self) -> str:
        return "IMAGENET1K_V1" if self.weights is None else ImageNetFeatures.source(self)

    def check_available(self) -> None:
        """Find the weights; those of torchvision are downloaded here, so that a run fails early."""
        path = self.path()
        if path.is_file():
            return
        if self.weights is not None:
            raise DataError(
                f"data.features.weights: no file {path}; copy a torchvision resnet18 state_dict "
                "there, or leave the setting out to download one"
            )
        from torch.hub import download_url_to_file
        from torchvision.models import ResNet18_Weights

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            url = ResNet18_Weights.IMAGENET1K_V1.url
            digest = path.stem.rpartition("-")[2]
            download_url_to_file(url, str(path), hash_prefix=digest, progress=False)
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"the ImageNet weights of resnet18 are not in {path} and cannot be downloaded "
                f"({error}); copy the file there, or set data.features.weights to a local "
                "state_dict"
            ) from error

    def default_weights(self) -> Path:
        """Return where torch keeps downloaded weights, without importing torch."""
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.environ.get("TORCH_HOME") or f"{cache}/torch"
        return Path(home).expanduser() / "hub" / "checkpoints" / RESNET18_FILE

    def network(self, path: Path) -> Network:
        return _resnet18(str(path), path.stat().st_mtime_ns)


@FEATURES.register("lite0")
@settings
class Lite0Features(ImageNetFeatures):
    """Pooled activations of EfficientNet-Lite0, d = 1280; weights from a file."""

    width: ClassVar[int] = 1280

    weights: str | None = None
    """File with a state_dict; null: where `raysim data fetch lite0` puts it."""
    size: Annotated[int, In("[32, inf)")] = 128
    """Side to which images are resized; a multiple of 32."""

    def __post_init__(self) -> None:
        # the package pads for 224 pixels; only sizes that halve five times give the same padding
        check(self.size % 32 == 0, "size", "must be a multiple of 32", got=self.size, do="use 128")

    def check_available(self) -> None:
        if importlib.util.find_spec("efficientnet_lite_pytorch") is None:
            raise DataError(
                "data.features lite0 needs the package efficientnet-lite-pytorch, which is not "
                "installed; pip install raysim[lite0]"
            )
        if not self.path().is_file():
            raise DataError(
                f"data.features lite0 needs its weights, and there is no file {self.path()}; "
                "run `raysim data fetch lite0`, or set data.features.weights"
            )

    def default_weights(self) -> Path:
        return data_root(None) / LITE0_FILE

    def network(self, path: Path) -> Network:
        return _lite0(str(path), path.stat().st_mtime_ns)


def _resized(images: torch.Tensor, size: int) -> torch.Tensor:
    """Return pixels (N, 3, S, S) of 0 ... 255, from (N, H, W, C) bytes or values in [0, 1]."""
    from torch import channels_last
    from torch.nn.functional import interpolate

    scale = 255.0 if images.is_floating_point() else 1.0
    planes = (images.permute(0, 3, 1, 2).float() * scale).expand(-1, 3, -1, -1)
    # the layout decides the kernels and so the bits; this one is half as fast again as NCHW
    planes = planes.contiguous(memory_format=channels_last)
    return interpolate(
        planes, size=(size, size), mode="bilinear", align_corners=False, antialias=True
    )


@lru_cache(maxsize=1)
def _resnet18(path: str, modified_ns: int) -> Network:
    """Return the network of a weights file; kept, since features come in many chunks."""
    import torch
    from torchvision.models import resnet18

    model = resnet18(weights=None)
    model.fc = torch.nn.Identity()
    state = {k: v for k, v in _state(path).items() if not k.startswith("fc.")}
    model = _with_state(model, state, path, "resnet18")
    mean, std = (torch.tensor(v, device=torch_device()).reshape(3, 1, 1) for v in IMAGENET)
    return lambda pixels: model((pixels / 255.0 - mean) / std)


@lru_cache(maxsize=1)
def _lite0(path: str, modified_ns: int) -> Network:
    """Return the network of a weights file; kept, since features come in many chunks."""
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    model = _with_state(model, _state(path), path, "efficientnet-lite0")
    return lambda pixels: model.extract_features((pixels - 127.0) / 128.0).mean(dim=(2, 3))


def _state(path: str) -> dict[str, torch.Tensor]:
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises anything for a damaged file
        reason = str(error).split("\n")[0]
        raise DataError(
            f"data.features.weights: {path} cannot be read as a torch state_dict ({reason}); "
            "fetch the file again"
        ) from error
    if not isinstance(state, dict):
        raise DataError(
            f"data.features.weights: {path} must hold a state_dict, got {type(state).__name__}; "
            "save model.state_dict() there"
        )
    return state


def _with_state(model: Any, state: dict[str, torch.Tensor], path: str, name: str) -> Any:
    """Return ``model`` with these weights, frozen, on the device it will run on."""
    import torch

    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise DataError(
            f"data.features.weights: {path} does not hold the weights of {name}: {error}; "
            "use the state_dict of that network"
        ) from error
    model = model.eval().requires_grad_(False)
    return model.to(torch_device(), memory_format=torch.channels_last)


@lru_cache(maxsize=8)
def _digest_of(path: str, num_bytes: int, modified_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
