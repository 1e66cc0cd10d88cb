"""Initial weights from a file: what fits a network, by name and shape.

Reads torch's state_dict files, without running anything a pickle may hold, and safetensors files.
Names are ours (``body.``, ``head.``) or those of torchvision and timm.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raysim.errors import ConfigError

if TYPE_CHECKING:
    from raysim.models.params import Layout

HEADS = ("head.", "fc.", "classifier.1.")  # ours and timm's ViT, ResNet, MobileNetV2
COUNTER = ".num_batches_tracked"
DO = "use a state_dict of this very network, or leave model.weights out to start at random"


def stored_arrays(path: str, shapes: Layout) -> dict[str, np.ndarray]:
    """Return the file's arrays by our names, each in the shape that ``shapes`` asks for.

    Everything but the head must be there, and nothing else. A head of another shape is left out:
    it belongs to other classes.
    """
    file = Path(path).expanduser()
    stored = _read(file)
    found = {_our_name(name): array for name, array in stored.items()}
    wanted = dict((*shapes.trainable, *shapes.buffers))
    head = {name for name in wanted if name.startswith("head.")}
    for name in (n for n in wanted if n not in head):
        _refuse_other(file, name, wanted[name], found, first=next(iter(stored), "nothing"))
    for name in stored:
        ours = _our_name(name)
        if ours not in wanted and not ours.startswith("head."):
            raise ConfigError(
                f"model.weights: {file} holds {name} {stored[name].shape}, which the network does "
                f"not have; {DO}"
            )
    if any(name not in found or not _fits(found[name], wanted[name]) for name in head):
        wanted = {name: shape for name, shape in wanted.items() if name not in head}
    return {name: found[name] for name in wanted}


def _refuse_other(
    file: Path, name: str, shape: tuple[int, ...], found: Mapping[str, np.ndarray], first: str
) -> None:
    if name not in found:
        raise ConfigError(
            f"model.weights: {file} must hold {name} {shape}, got {len(found)} other arrays, the "
            f"first of them {first}; {DO}"
        )
    if not _fits(found[name], shape):
        got = f"{found[name].shape} of {found[name].dtype}"
        raise ConfigError(
            f"model.weights: {file} must hold {name} with shape {shape} of floats, got {got}; the "
            f"file is of other model settings or other images: {DO}"
        )


def _fits(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    return array.shape == shape and array.dtype.kind == "f"


def _our_name(name: str) -> str:
    for head in HEADS:
        if name.startswith(head):
            return "head." + name.removeprefix(head)
    return name if name.startswith("body.") else f"body.{name}"


def _read(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays by the file's names, without batch norm's counters."""
    if not file.is_file():
        raise ConfigError(
            f"model.weights: no file {file}; copy a state_dict there, or leave the setting out to "
            "start at random"
        )
    try:
        arrays = _arrays(file)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"model.weights: {file} is not a plain state_dict: it holds objects that would run "
            "code when loaded, or is damaged; save model.state_dict() there, nothing else"
        ) from error
    except Exception as error:  # torch raises anything for a damaged file
        reason = str(error).split("\n")[0]
        raise ConfigError(
            f"model.weights: {file} cannot be read as a state_dict ({type(error).__name__}: "
            f"{reason}); it must be written by torch.save or safetensors: make it again"
        ) from error
    return {name: array for name, array in arrays.items() if not name.endswith(COUNTER)}


def _arrays(file: Path) -> dict[str, np.ndarray]:
    import torch
    from safetensors.torch import load_file

    if file.suffix == ".safetensors":
        state = load_file(file)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise TypeError(f"it holds a {type(state).__name__}, not tensors by name")
    arrays = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"its {name!r} is a {type(tensor).__name__}, not a tensor")
        # NumPy has no bfloat16
        plain = tensor.detach().float() if tensor.is_floating_point() else tensor
        arrays[str(name)] = plain.numpy()
    return arrays
