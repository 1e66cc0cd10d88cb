"""The images on which the server scores clients' models: clean ones, a file's, or drawn ones."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raysim.core.generator import drawn_images
from raysim.errors import ConfigError, DataError
from raysim.protocols import Context, State, Tree
from raysim.seeding import stream
from raysim.settings import check, settings
from raysim.steps.group_training import with_initial

VALIDATION = "validation/images"
"""Name of the stored images and labels, where they are not the server's clean ones."""
FORM = "np.savez(path, images=uint8 (N, H, W, C), labels=class numbers (N,))"


@settings
class ValidationSettings:
    """What clients' models are scored on."""

    kind: Literal["clean", "file", "generated"] = "clean"
    """clean: the server's clean images; file: images made elsewhere, such as those of ClipFL's
    diffusion model; generated: drawn from a Gaussian per class that is fitted to the clean images,
    a stand-in and not the paper's generator."""
    path: str | None = None
    """Of kind file: an npz with images, uint8 (N, H, W, C), and labels (N,)."""
    per_class: int = 100  # ours; ClipFL draws 1000 of CIFAR-10
    """Of kind generated: images drawn of every class."""
    components: int = 32  # ours
    """Of kind generated: dimensions of the space they are drawn in."""

    def __post_init__(self) -> None:
        if self.kind == "file":
            do = "name the npz file"
            check(self.path is not None, "path", "must be set with kind file", got=None, do=do)
        else:
            do = "set kind to file, or leave path out"
            check(self.path is None, "path", "needs kind file", got=self.path, do=do)
        for name in ("per_class", "components"):
            value = getattr(self, name)
            check(value >= 1, name, "must be at least 1", got=value, do="leave it out")

    def check(self, classes: int) -> None:
        """Refuse a file that cannot be used; the size of its images is checked when it is."""
        if self.kind == "file":
            labelled_images(str(self.path), classes)


def with_validation(context: Context, state: State, how: ValidationSettings) -> State:
    """Return the state with the images to score on, unless they are the server's clean ones."""
    if how.kind == "clean" or VALIDATION in state.models:
        return state
    state = state if state.models else with_initial(context, state)
    if how.kind == "file":
        handle = context.federation.put(_from_file(context, str(how.path)))
    else:
        handle = context.federation.derive(
            generated_set,
            images=context.server_images(),
            labels=context.clean[1],
            how=how,
            seed=context.config.seed,
        )
    return replace(state, models={**state.models, VALIDATION: handle})


def without_validation(state: State) -> State:
    """Return the state without the images, once nobody is scored any more."""
    return replace(state, models={n: h for n, h in state.models.items() if n != VALIDATION})


def generated_set(
    *, images: np.ndarray, labels: np.ndarray, how: ValidationSettings, seed: int
) -> Tree:
    """Return images drawn around the clean ones, and their labels."""
    drawn, found = drawn_images(
        images,
        labels,
        per_class=how.per_class,
        components=how.components,
        rng=stream(seed, "validation"),
    )
    return {"images": drawn, "labels": found}


def _from_file(context: Context, path: str) -> Tree:
    images, labels = labelled_images(path, context.classes)
    if images.shape[1:] != tuple(context.image_shape):
        raise DataError(
            f"{path}: images must be (H, W, C) = {tuple(context.image_shape)}, as the dataset's, "
            f"got {images.shape[1:]}; resize them"
        )
    digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    context.record(validation_file={"images": len(labels), "sha256": digest})
    return {"images": context.prepared(images), "labels": labels}


def labelled_images(path: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, H, W, C) and labels (N,) of an npz; refuse what cannot be scored on."""
    arrays = _arrays(path)
    images, labels = arrays["images"], arrays["labels"]
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or images.dtype != np.uint8:
        raise DataError(
            f"{path}: images must be uint8 (N, H, W, C), got {images.dtype} "
            f"{arrays['images'].shape}; write it as {FORM}"
        )
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"{path}: labels must be integers ({len(images)},), one per image, got {labels.dtype} "
            f"{labels.shape}; write it as {FORM}"
        )
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(
            f"{path}: labels must be classes 0 to {classes - 1}, got {int(wrong[0])}; number the "
            "classes as the dataset does"
        )
    missing = sorted(set(range(classes)) - set(labels.tolist()))
    if missing:
        raise DataError(
            f"{path}: class {missing[0]} has no image ({len(missing)} of {classes} classes have "
            "none); add images of every class"
        )
    return images, labels.astype(np.int64)


def _arrays(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise ConfigError(
            f"method.validation.path: there is no file {path}; write it as {FORM}, or use another "
            "method.validation.kind"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("images", "labels")}
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile) as wrong:
        raise DataError(
            f"{path} is not an npz with images and labels ({wrong}); write it as {FORM}"
        ) from wrong
