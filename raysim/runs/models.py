"""Final models of a run as files that others can use: ``models/*.safetensors`` and an index.

``models/index.json`` says which clients use which file and appears last: where it is, the files it
names are whole. A run writes them when it ends; ``export_models`` makes them from the checkpoint
of any run, finished or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from raysim import __version__
from raysim.config import RunConfig, choice_name, dump_config, load_saved
from raysim.data.world import DriverData
from raysim.errors import CheckpointError, ConfigError, DataError, OutputError
from raysim.protocols import ClientId, Tree
from raysim.runs.checksums import sha256
from raysim.runs.folder import RunFolder
from raysim.runs.saved_models import ModelFacts, SavedModel, from_bytes, to_bytes
from raysim.storage.checkpoint import MANIFEST, PREVIOUS, read_object, verified
from raysim.storage.files import reason
from raysim.storage.objects import Place, Storage, open_storage, remedy

FOLDER, INDEX = "models", "index.json"
MOST = 100
"""A run with more models than this leaves their files to ``raysim export --all``."""
KINDS = ("group", "client")
"""Models that somebody uses; the others (FedAdam's moments) are the server's own."""


@dataclass(frozen=True)
class Commit:
    """What a run's models are after ``round`` rounds."""

    round: int
    groups: Mapping[ClientId, int]
    digests: Mapping[str, str]
    """Name of every stored model -> sha256 of its weights."""

    @property
    def names(self) -> list[str]:
        """Names of the models that somebody uses, in order."""
        found = [name for name in self.digests if name.split("/")[0] in KINDS]
        return sorted(found, key=lambda name: (name.split("/")[0], int(name.split("/")[1])))

    def clients(self, name: str) -> tuple[ClientId, ...]:
        """Clients that use a model."""
        kind, number = name.split("/")
        if kind == "client":
            return (int(number),)
        return tuple(k for k, group in sorted(self.groups.items()) if group == int(number))


# ---- writing -------------------------------------------------------------------------------


def write_models(run: RunFolder, commit: Commit, *, config: RunConfig, data: DriverData) -> None:
    """Write the final models of a run that holds their commit; of more than MOST the index only."""

    def get(name: str) -> Tree:  # one at a time, from where no lost node can take it
        return read_object(run.checkpoint, commit.digests[name])

    _write(run.storage, commit, get, config=config, data=data, folder=FOLDER, most=MOST)


def _write(
    storage: Storage,
    commit: Commit,
    get: Callable[[str], Tree],
    *,
    config: RunConfig,
    data: DriverData,
    folder: str,
    most: int | None,
) -> list[str]:
    """Write one file per model and the index; return the files' names."""
    names = commit.names
    written = names if most is None or len(names) <= most else []
    entries: list[dict[str, Any]] = []
    head = f"{folder}/" if folder else ""
    try:
        storage.remove(f"{head}{INDEX}")  # of other files
        for name in written:
            facts = model_facts(name, commit, config, data)
            content = to_bytes(get(name), facts)
            file = file_name(name)
            storage.write(f"{head}{file}", content)
            used = {"clients": list(facts.clients), "digest": facts.digest}
            size = {"bytes": len(content), "sha256": sha256(content)}
            entries.append({"name": name, "file": file, **used, **size})
        index = _index(commit, config, entries, left_out=len(names) - len(written))
        storage.write(f"{head}{INDEX}", (json.dumps(index, indent=1) + "\n").encode())
    except OSError as wrong:
        raise OutputError(
            f"the models could not be written to {storage.root}/{folder} ({reason(wrong)}); "
            f"{remedy(wrong, storage.root)}, then go on with --resume, or use `raysim export`"
        ) from wrong
    return [entry["file"] for entry in entries]


def file_name(name: str) -> str:
    """Return the file of a model: group/0 -> group-0.safetensors."""
    return f"{name.replace('/', '-')}.safetensors"


def _index(
    commit: Commit, config: RunConfig, entries: Sequence[Mapping[str, Any]], *, left_out: int
) -> dict[str, Any]:
    index: dict[str, Any] = {
        "raysim": __version__,
        "method": config.method_label,
        "dataset": choice_name(config.data.dataset),
        "seed": config.seed,
        "round": commit.round,
        "files": list(entries),
    }
    if left_out:
        index |= {"left_out": left_out, "do": "raysim export RUN --all writes them"}
    return {**index, "sha256": _index_digest(index)}


def _index_digest(index: Mapping[str, Any]) -> str:
    """Return the sha256 of an index without its own."""
    plain = {name: value for name, value in index.items() if name != "sha256"}
    return sha256(json.dumps(plain, sort_keys=True).encode())


def model_facts(name: str, commit: Commit, config: RunConfig, data: DriverData) -> ModelFacts:
    """Return what the file of a model says about it."""
    store, clients = data.store, commit.clients(name)
    tested = data.test_classes()
    return ModelFacts(
        raysim=__version__,
        name=name,
        method=config.method_label,
        dataset=choice_name(config.data.dataset),
        dataset_digest=store.digest,
        seed=config.seed,
        round=commit.round,
        clients=clients,
        tasks=tuple(dict.fromkeys(tuple(map(int, tested[k])) for k in clients)),
        model={k: v for k, v in dump_config(config)["model"].items() if k != "weights"},
        kernel=config.train.kernel,
        classes=data.classes,
        class_names=tuple(store.class_names),
        image_shape=tuple(map(int, store.image_shape)),  # type: ignore[arg-type]
        pixels=store.test_images.dtype.name,
        normalize=config.data.normalize,
        mean=tuple(map(float, store.mean)),
        std=tuple(map(float, store.std)),
        digest=commit.digests[name],
    )


# ---- from a run directory ------------------------------------------------------------------


class RunModels:
    """The models of a run directory: from its files, else from its checkpoint."""

    def __init__(self, run: Place) -> None:
        self.storage = open_storage(run)
        try:
            if not self.storage.exists("config.yaml"):
                raise DataError(f"no run directory at {run}; `raysim run` makes one")
        except OSError as wrong:
            raise DataError(f"{run} cannot be read ({reason(wrong)}); make it reachable") from wrong

    @property
    def names(self) -> list[str]:
        return list(self._files) if self._files else self.commit.names

    def clients(self, name: str) -> tuple[ClientId, ...]:
        """Clients that use a model."""
        if self._files:
            return tuple(self._files[name]["clients"])
        return self.commit.clients(name)

    def choose(self, *, group: int | None, client: int | None) -> str:
        """Return the name of a group's or a client's model, or of the only one there is."""
        names, root = self.names, self.storage.root
        if group is not None and client is not None:
            raise ConfigError("--group and --client contradict each other; give one of them")
        if client is not None:
            found = [name for name in names if client in self.clients(name)]
            if not found:
                known = sorted({k for name in names for k in self.clients(name)})
                span = f"{known[0]} to {known[-1]}" if known else "none"
                raise ConfigError(
                    f"client {client} is not in {root}, it has {span}; a client that came later is "
                    "put into a group by `raysim assign`"
                )
            return found[0]
        if group is not None:
            if f"group/{group}" not in names:
                raise ConfigError(
                    f"{root} has no model of group {group}, it has {_few(names)}; choose one of "
                    "them"
                )
            return f"group/{group}"
        if len(names) != 1:
            raise ConfigError(
                f"{root} has {len(names)} models ({_few(names)}); say which with --group M or "
                "--client K; `raysim assign` finds the group of a client that came later"
            )
        return names[0]

    def load(self, name: str) -> SavedModel:
        if name not in self.names:
            known = _few(self.names) if self.names else "none"
            raise DataError(f"{self.storage.root} has no model {name!r}; ask for one of: {known}")
        if self._files:
            file = f"{FOLDER}/{self._files[name]['file']}"
            try:
                content = self.storage.read(file)
                if self._files[name].get("sha256", sha256(content)) != sha256(content):
                    raise DataError(
                        f"{self.storage.root}/{file} is damaged (its sha256 is not that in "
                        f"{FOLDER}/{INDEX}); make it again with `raysim export`"
                    )
                return from_bytes(content, f"{self.storage.root}/{file}")
            except FileNotFoundError:  # somebody tidied up; the checkpoint has it too
                pass
            except ConfigError:
                _ = self.config  # says which modules of the user's may hold the network
                raise
        facts = model_facts(name, self.commit, self.config, self.data)
        return SavedModel(self.tree(name), facts)

    def tree(self, name: str) -> dict[str, np.ndarray]:
        """Return a model's weights from the checkpoint."""
        return read_object(f"{self.storage.root}/checkpoint", self.commit.digests[name])

    @cached_property
    def config(self) -> RunConfig:
        """The run's config, its training kernel decided."""
        where = f"{self.storage.root}/config.yaml"
        try:
            return load_saved(RunFolder(self.storage.root).saved_config(), where)
        except (ConfigError, CheckpointError) as wrong:
            raise DataError(f"{where} is not of this raysim: {wrong}") from wrong

    @cached_property
    def data(self) -> DriverData:
        """The run's data, made again from its config; refused where it is not the same."""
        data = DriverData(self.config.data, self.config.seed)
        environment = RunFolder(self.storage.root).read("environment.json")
        was = environment.get("data", {}).get("digest", data.store.digest)
        if was != data.store.digest:
            raise DataError(
                f"dataset {data.store.name} here has digest {data.store.digest[:12]}, the run used "
                f"{was[:12]}; put the same files into data.root"
            )
        return data

    @cached_property
    def commit(self) -> Commit:
        """The newest commit that is whole; nothing is changed, the run may be going on."""
        for name in (MANIFEST, PREVIOUS):
            try:
                manifest = verified(self.storage.read(f"checkpoint/{name}"))
            except FileNotFoundError:
                continue
            if manifest is not None:
                groups = {int(k): int(g) for k, g in manifest["groups"].items()}
                return Commit(int(manifest["finished"]), groups, manifest["models"])
        raise CheckpointError(
            f"{self.storage.root} holds no models: neither {FOLDER}/{INDEX} nor a checkpoint; "
            "fetch it with --models, or run it again"
        )

    @cached_property
    def _files(self) -> dict[str, Any]:
        """Entries of the index by the names of the models; empty without one."""
        name = f"{FOLDER}/{INDEX}"
        if not self.storage.exists(name):
            return {}
        try:
            index = json.loads(self.storage.read(name))
            if index.get("sha256") not in (None, _index_digest(index)):
                raise ValueError("its content has another sha256")
            return {entry["name"]: entry for entry in index["files"]}
        except (ValueError, KeyError, TypeError) as wrong:
            raise DataError(
                f"{self.storage.root}/{name} is damaged ({wrong}); make it again with `raysim "
                "export`"
            ) from wrong


def _few(names: Sequence[str], most: int = 5) -> str:
    more = f", ... {names[-1]}" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def export_models(run: Place, to: Place | None = None, *, everything: bool = False) -> list[str]:
    """Write the models of a run's checkpoint into its models/ or to ``to``; return the files."""
    models = RunModels(run)
    names = models.commit.names
    if not names:
        raise DataError(
            f"the last commit of {models.storage.root} (after round {models.commit.round}) holds "
            "no models yet; wait for the first round of training"
        )
    if len(names) > MOST and not everything:
        raise ConfigError(
            f"{models.storage.root} has {len(names)} models, one per client; --all writes them all"
        )
    if to is not None:
        _refuse_foreign(open_storage(to))
    return _write(
        models.storage if to is None else open_storage(to),
        models.commit,
        models.tree,
        config=models.config,
        data=models.data,
        folder=FOLDER if to is None else "",
        most=None,
    )


def _refuse_foreign(storage: Storage) -> None:
    """Refuse a folder whose index.json somebody else wrote."""
    if not storage.exists(INDEX):
        return
    try:
        index = json.loads(storage.read(INDEX))
    except ValueError:
        index = None
    if not (isinstance(index, dict) and "raysim" in index):
        raise OutputError(
            f"{storage.root}/{INDEX} is not one of `raysim export`; choose another folder for --to"
        )
