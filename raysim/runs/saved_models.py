"""A trained model as one safetensors file that needs nothing else.

The tensors have the names and shapes of the network's ``state_dict`` (without batch norm's integer
counters, which nothing reads). The header's one entry, ``raysim``, is JSON: the model's settings,
classes, image shape and how pixels are prepared, and where the weights come from (``ModelFacts``).
Equal weights and facts give equal bytes.

With raysim::

    saved = load_model("models/group-0.safetensors")
    network = saved.build()                  # a torch module, weights loaded, ready to evaluate

With torch and safetensors alone, the network made by raysim or by hand::

    weights = safetensors.torch.load_file("models/group-0.safetensors")
    network = Mlp(hidden=64).build((8, 8, 1), 10)          # raysim.models.zoo
    network.load_state_dict(weights)
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.errors import DataError
from raysim.models.params import Layout, layout, load_tree, named_arrays
from raysim.models.zoo import MODELS, Model, dense_widths
from raysim.protocols import Tree
from raysim.storage.checkpoint import tree_digest

if TYPE_CHECKING:
    from raysim.models.networks import ImageShape, Network

ENTRY = "raysim"
"""Name of the entry in the header: one, since the library writes several in any order."""


@dataclass(frozen=True)
class ModelFacts:
    """What a file says about its weights."""

    raysim: str
    """Version that wrote the file."""
    name: str
    """The run's name of the model: group/0, client/7."""
    method: str
    dataset: str
    dataset_digest: str
    seed: int
    round: int
    """Rounds of the run, one-shot stages included, after which the weights were these."""
    clients: tuple[int, ...]
    """Clients that use the model."""
    tasks: tuple[tuple[int, ...], ...]
    """Classes these clients are tested on, one entry per task among them."""
    model: Mapping[str, Any]
    """Settings of the network, ``name`` among them."""
    kernel: str
    """closed_form or autograd: which of two ways, equal up to rounding, gave the accuracies."""
    classes: int
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    pixels: str
    """uint8: scaled to [0, 1], then ``normalize``; float32: taken as they are."""
    normalize: str
    """channel: less ``mean``, divided by ``std``; unit: neither."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    """sha256 of the weights; names their object in the checkpoint."""
    weights: str = ""
    """sha256 of what the file holds: less than the object, where a method has a second network."""


@dataclass(frozen=True)
class SavedModel:
    """Weights and facts of one file."""

    tree: dict[str, np.ndarray]
    facts: ModelFacts

    @property
    def model(self) -> Model:
        return model_of(self.facts.model)

    def build(self) -> Network:
        """Return the torch network with these weights, in evaluation mode.

        It takes float32 images (N, channels, height, width), prepared as ``facts`` say, and returns
        logits of all classes.
        """
        network = self.model.build(self.facts.image_shape, self.facts.classes)
        load_tree(network, self.tree)
        return network.eval()


def load_model(path: str | Path) -> SavedModel:
    file = Path(path).expanduser()
    try:
        content = file.read_bytes()
    except OSError as wrong:
        raise DataError(f"{file} cannot be read ({wrong.strerror}); give a model file") from wrong
    return from_bytes(content, str(file))


def to_bytes(tree: Tree, facts: ModelFacts) -> bytes:
    from safetensors.numpy import save

    shapes = _layout(model_of(facts.model), facts.image_shape, facts.classes)
    arrays = {name: np.ascontiguousarray(a) for name, a in named_arrays(tree, shapes).items()}
    held = tree_digest({part: tree[part] for part in ("trainable", "buffers")})
    facts = dataclasses.replace(facts, weights=held)
    text = json.dumps(dataclasses.asdict(facts), sort_keys=True)
    return bytes(save(arrays, metadata={ENTRY: text}))


def from_bytes(content: bytes, where: str) -> SavedModel:
    """Return the model of a file's content; ``where`` names it in errors."""
    facts = _facts(content, where)
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        shapes = _layout(model_of(facts.model), facts.image_shape, facts.classes)
        tree = {
            "trainable": _flat([arrays[name] for name, _ in shapes.trainable]),
            "buffers": _flat([arrays[name] for name, _ in shapes.buffers]),
        }
    except (SafetensorError, KeyError, ValueError) as wrong:
        raise _damaged(where, wrong) from wrong
    if facts.weights and tree_digest(tree) != facts.weights:
        raise _damaged(where, ValueError("its weights have another digest"))
    return SavedModel(tree, facts)


def model_of(plain: Mapping[str, Any]) -> Model:
    """Return the settings object of a model written as plain values.

    ``weights`` names the file that training started from; nobody needs it any more.
    """
    cls = MODELS.get(str(plain["name"]))
    given = {k: v for k, v in plain.items() if k not in ("name", "weights")}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def _facts(content: bytes, where: str) -> ModelFacts:
    """Read the header itself: 8 bytes of length, then JSON."""
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        plain = json.loads(header["__metadata__"][ENTRY])
        known = {field.name for field in dataclasses.fields(ModelFacts)}
        return ModelFacts(**{k: _tuples(v) for k, v in plain.items() if k in known})
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as wrong:
        raise _damaged(where, wrong) from wrong


def _damaged(where: str, wrong: Exception) -> DataError:
    return DataError(
        f"{where} must be a model file of raysim, got: {type(wrong).__name__} {wrong}; make it "
        "again with `raysim export RUN`"
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _flat(arrays: list[np.ndarray]) -> np.ndarray:
    parts = [array.reshape(-1) for array in arrays]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _layout(model: Model, image_shape: ImageShape, classes: int) -> Layout:
    """Return the layout; that of dense models without torch, whose import takes seconds."""
    widths = dense_widths(model, image_shape, classes)
    if widths is None:
        return layout(model, image_shape, classes)
    *hidden, head = itertools.pairwise(widths)
    names = [f"body.{2 * i + 1}" for i in range(len(hidden))]  # after the flattening, ReLU between
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for name, (inputs, outputs) in zip([*names, "head"], [*hidden, head], strict=True):
        shapes += [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]
    return Layout(trainable=tuple(shapes), buffers=())
