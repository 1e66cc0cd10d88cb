"""The data side of a run: settings, what every node can open, what only the driver may know."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np

from raysim.data.datasets import DATASETS, Dataset
from raysim.data.datasets.client_files import ClientFiles
from raysim.data.datasets.client_folder import ClientFolder
from raysim.data.features import FEATURES, Extractor
from raysim.data.noise import NOISE, Human, Noise, NoisyLabels, NoNoise
from raysim.data.partition import (
    PARTITIONS,
    FilePartition,
    GivenPartition,
    Partition,
    Split,
    floor_share,
)
from raysim.errors import ConfigError, DataError
from raysim.protocols import ClientRecord
from raysim.seeding import stream
from raysim.settings import In, check, choice, settings

READY_BYTES = 256_000_000
"""Training images that one process keeps converted and in one piece, not gathered every round."""


@settings
class CleanSetSettings:
    """The small clean set at the server."""

    per_class: Annotated[int, In("[0, inf)")] = 20
    """Images per class, taken out of the training split before clients get theirs."""


@settings
class DataSettings:
    """Which images, which features, who holds what, and which labels are wrong."""

    dataset: Dataset = choice(DATASETS, "digits")
    root: str | None = None
    """Folder of local files; null: the cache folder, then download."""
    fraction: Annotated[float, In("(0, 1]", "1.0 takes all images")] = 1.0
    """Share of each class's training images that takes part, server included; the test set stays
    whole."""
    normalize: Literal["channel", "unit"] = "channel"
    """Model input: per-channel mean and deviation, or only scaled to [0, 1]."""
    features: Extractor = choice(FEATURES, "hog")
    correction_features: Extractor | None = choice(FEATURES, None)
    """Features for label correction; null: the same as ``features``."""
    partition: Partition = choice(PARTITIONS, "tasks")
    noise: Noise = choice(NOISE, "none")
    server: CleanSetSettings = CleanSetSettings()

    def __post_init__(self) -> None:
        check(
            self.fraction == 1.0 or not isinstance(self.partition, FilePartition),
            "fraction",
            "must be 1 with partition file, which names its samples",
            got=self.fraction,
            do="leave it out, or use another data.partition",
        )
        if isinstance(self.partition, GivenPartition):
            same, do = self.partition.root in (None, self.root), "leave data.partition.root out"
            check(same, "partition", "must have the root of data", got=self.partition.root, do=do)
            object.__setattr__(self, "partition", replace(self.partition, root=self.root))

    def extractor(self, use: str) -> Extractor:
        """Return the extractor for "grouping" or "correction"."""
        if use == "correction" and self.correction_features is not None:
            return self.correction_features
        return self.features


@dataclass(frozen=True)
class DataSpec:
    """Small picklable value from which every node opens the same images and features."""

    dataset: Any
    root: str | None
    normalize: Literal["channel", "unit"]
    extractors: tuple[tuple[str, Any], ...]
    digest: str

    def open(self) -> DataWorld:
        """Open this node's memory-mapped arrays, making them first where they are missing."""
        from raysim.data.store import materialise

        store = materialise(self.dataset, self.root)
        if store.digest != self.digest:
            raise DataError(
                f"this node's copy of {store.name} has digest {store.digest[:12]}, the driver's "
                f"{self.digest[:12]}; put the same files into data.root on every node"
            )
        return DataWorld(self, store)


class DataWorld:
    """Images and features of one node; it cannot reach a training label."""

    def __init__(self, spec: DataSpec, store: Any) -> None:
        self._spec, self._store = spec, store
        self._features: dict[str, np.ndarray] = {}
        self._ready: dict[bytes, np.ndarray] = {}
        self._ready_bytes = 0

    def images(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return training images as model input; kept in one piece while there is room."""
        source = self._store.train_images
        key = sample_ids.tobytes()
        if key in self._ready:
            return self._ready[key]
        images = self.prepared(source[sample_ids])
        if self._ready_bytes + images.nbytes <= READY_BYTES:
            images.flags.writeable = False
            self._ready[key] = images
            self._ready_bytes += images.nbytes
        return images

    @cached_property
    def black(self) -> np.ndarray:
        """A black pixel as model input."""
        source = self._store.train_images
        return self.prepared(np.zeros((1, 1, 1, source.shape[3]), source.dtype))[0, :, 0, 0]

    def visiting(self) -> DataWorld:
        """Return this world for clients that may not come again: nothing is kept for them."""
        world = copy.copy(self)
        world._ready, world._ready_bytes = {}, READY_BYTES
        return world

    def test_set(self, classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the test images of ``classes`` as model input, and their public labels."""
        labels = np.asarray(self._store.test_labels)
        ids = np.flatnonzero(np.isin(labels, classes))
        return self.prepared(self._store.test_images[ids]), labels[ids]

    def features(self, use: str, sample_ids: np.ndarray) -> np.ndarray:
        if use not in self._features:
            from raysim.data.features import feature_file
            from raysim.data.store import cache_root

            extractors = dict(self._spec.extractors)
            try:
                self._features[use] = feature_file(
                    self._store, extractors[use], cache_root() / "features"
                )
            except DataError as wrong:
                same = extractors[use] == extractors["grouping"]
                raise DataError(f"data.{'' if same else 'correction_'}features: {wrong}") from wrong
        return np.asarray(self._features[use][sample_ids])

    def prepared(self, images: np.ndarray) -> np.ndarray:
        """Return images (N, H, W, C) as model input."""
        from raysim.data.store import prepare

        return prepare(images, self._store.mean, self._store.std, self._spec.normalize)


class DriverData:
    """What the driver knows about the data, the truth included; never sent to an actor."""

    def __init__(self, config: DataSettings, seed: int) -> None:
        from raysim.data.store import materialise
        from raysim.data.truth import true_labels

        is_given = isinstance(config.dataset, ClientFiles)
        if is_given or isinstance(config.partition, GivenPartition):
            _check_given(config)
        self.settings = config
        self.store = materialise(config.dataset, config.root)
        self.true_labels = true_labels(self.store)
        self.given: ClientFolder | None = None
        """The folder where clients bring their own data and nothing is drawn."""
        if isinstance(config.dataset, ClientFiles):
            given = config.dataset.given(config.root, config.server.per_class)
            self.given, self.split, self.noisy = given
        else:
            self.split, self.noisy = self._drawn(config, seed)
        self._check_tested()

    def _drawn(self, config: DataSettings, seed: int) -> tuple[Split, NoisyLabels]:
        """Return who holds what and with which labels, drawn from ``seed``."""
        used = used_samples(self.true_labels, config.fraction, stream(seed, "fraction"))
        split = config.partition.make_split(
            self.true_labels[used],
            classes=self.store.classes,
            task_table=config.dataset.tasks,
            per_class=config.server.per_class,
            rng=stream(seed, "partition"),
            digest=self.store.digest,
        )
        split = replace(  # ids of the whole training set again
            split,
            clients=tuple(used[ids] for ids in split.clients),
            server_ids=used[split.server_ids],
        )
        noise = config.noise
        if isinstance(noise, Human):
            noise = replace(noise, path=noise.path or config.root)
        noisy = noise.corrupt(
            self.true_labels,
            split,
            classes=self.store.classes,
            rngs=lambda client: stream(seed, "noise", client),
        )
        return split, noisy

    def _check_tested(self) -> None:
        """Refuse tasks that no test image belongs to: their clients would have no accuracy."""
        found = set(np.unique(self.store.test_labels).tolist())
        for k, task in enumerate(self.split.task_of):
            classes = self.split.tasks[int(task)]
            if found.isdisjoint(classes):
                source = self.split.source
                where = f"data.partition.path: split file {source}" if source else "data.partition"
                name, do = str(k), "use other tasks"
                if self.given is not None:
                    where, name = f"data.root {self.given.root}", self.given.clients[k].name
                    do = "hold some out with data.dataset.test_fraction"
                names = ", ".join(self.store.class_names[c] for c in classes)
                raise DataError(
                    f"{where} gives client {name} the classes {names}, of which dataset "
                    f"{self.store.name!r} has no test image; add test images, or {do}"
                )

    @property
    def knows_labels(self) -> bool:
        """Whether the true labels are known; clients' own data may come without them."""
        return self.given is None or self.given.knows_labels

    @property
    def knows_tasks(self) -> bool:
        return self.given is None or self.given.knows_tasks

    @property
    def classes(self) -> int:
        """Number of classes of the whole dataset; every head has this many outputs."""
        return int(self.store.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.store.image_shape

    def dimensions(self, uses: Sequence[str]) -> dict[str, int]:
        """Feature dimension per use, known before any feature is computed."""
        extractors = {use: self.settings.extractor(use) for use in uses}
        for extractor in extractors.values():
            extractor.check_available()
        return {use: e.dimension(self.image_shape) for use, e in extractors.items()}

    def spec(self) -> DataSpec:
        """Return what actors get instead of the data."""
        uses = ("grouping", "correction")
        return DataSpec(
            dataset=self.settings.dataset,
            root=self.settings.root,
            normalize=self.settings.normalize,
            extractors=tuple((use, self.settings.extractor(use)) for use in uses),
            digest=self.store.digest,
        )

    def client_records(self) -> tuple[ClientRecord, ...]:
        return tuple(
            ClientRecord(id=k, sample_ids=ids, labels=given)
            for k, (ids, given) in enumerate(zip(self.split.clients, self.noisy.given, strict=True))
        )

    @cached_property
    def clean(self) -> tuple[np.ndarray, np.ndarray]:
        """Sample ids and labels of the server's clean images."""
        ids = self.split.server_ids
        return ids, self.true_labels[ids]

    def check_clean_classes(self) -> None:
        counts = np.bincount(self.clean[1], minlength=self.classes)
        missing = np.flatnonzero(counts == 0)
        if missing.size and self.given is not None:
            raise ConfigError(
                f"class {self.store.class_names[int(missing[0])]} has no clean image at the "
                "server; label correction needs at least one of every class: add it to server.npz "
                "or server/<class>/ in data.root"
            )
        if missing.size:
            raise ConfigError(
                f"data.server.per_class: class {int(missing[0])} has no clean image at the server "
                f"(per_class is {self.settings.server.per_class}); label correction needs at least "
                "one of every class, raise data.server.per_class"
            )

    def check_privileges(self, privileges: Sequence[str]) -> None:
        """Refuse a method that needs a truth which is not known here."""
        for name, known, what, do in (
            ("tasks", self.knows_tasks, "tasks", "tasks.yaml or true_labels"),
            ("clean", self.knows_labels, "labels", "true_labels"),
        ):
            if name in privileges and not known:
                raise ConfigError(
                    f"this method needs the true {what}, which data.root {self.settings.root} does "
                    f"not hold; add {do} to the clients' files, or use another method"
                )

    def test_classes(self) -> dict[int, tuple[int, ...]]:
        """Classes of each client's own task."""
        return {k: self.split.tasks[int(task)] for k, task in enumerate(self.split.task_of)}


def _check_given(data: DataSettings) -> None:
    """Refuse anything drawn beside clients' own data."""
    for name, fits, wanted in (
        ("dataset", isinstance(data.dataset, ClientFiles), "client_files"),
        ("partition", isinstance(data.partition, GivenPartition), "given"),
        ("noise", isinstance(data.noise, NoNoise), "none"),
        ("fraction", data.fraction == 1.0, "1"),
    ):
        if not fits:
            found = getattr(data, name)
            raise ConfigError(
                f"data.{name} must be {wanted} with clients' own data, got "
                f"{getattr(found, 'choice_name', found)}; set data.{name} to {wanted}, or use "
                "another data.dataset and data.partition"
            )


def used_samples(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Return the ids of floor(fraction n_c) random samples of every class, ascending."""
    if fraction == 1.0:
        return np.arange(len(labels))
    counts = np.bincount(labels)
    wanted = [floor_share(fraction, int(n)) for n in counts]
    lost = [c for c, n in enumerate(counts) if n and not wanted[c]]
    if lost:
        raise ConfigError(
            f"data.fraction {fraction} leaves class {lost[0]} no image, it has {counts[lost[0]]}; "
            "raise it"
        )
    members = [np.flatnonzero(labels == c) for c in range(len(counts))]
    drawn = [rng.choice(m, n, replace=False) for m, n in zip(members, wanted, strict=True)]
    return np.sort(np.concatenate(drawn))
