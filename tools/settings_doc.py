"""Writes raysim/docs/settings.md: every setting with its default and what it means.

    python tools/settings_doc.py            # after a setting was added or changed

The words are the ones beside the fields in the code; WORDS has them for names that need none there.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from raysim.config import RunConfig
from raysim.settings import Registry

BAR = r"\|"
PAGE = Path(__file__).resolve().parents[1] / "raysim" / "docs" / "settings.md"
HEAD = """\
# Every setting

Written by `python tools/settings_doc.py` from the settings classes; a test compares. How configs
are put together is in [configs/README.md](../../configs/README.md). A section that is a *choice* is
picked by its `name:` or `kind:`, and takes the settings of what was picked:

```yaml
data:
  noise: {kind: uniform, rho: 0.5}
```

`raysim ls methods` (`datasets`, `models`, ...) lists the choices on the terminal.
"""
WORDS = {
    "name": "Name of the run, part of its directory.",
    "seed": "Decides everything random: split, noise, weights, batches, participants.",
    "alpha": "Concentration of the Dirichlet draw; small: very different clients.",
    "augment": "Random flips, or crops and flips, of training images.",
    "batch_size": "Samples per step; for features, images at a time.",
    "beta1": "FedAdam's decay of the first moment.",
    "beta2": "FedAdam's decay of the second moment.",
    "blocks": "Blocks into which the file is cut.",
    "classes": "Number of classes.",
    "clients": "Number of clients.",
    "conv_widths": "Channels of the convolutions.",
    "cpus": "CPUs that Ray reserves for an actor.",
    "data_seed": "Seed of the samples; the run's seed does not change them.",
    "dense_widths": "Units of the hidden dense layers.",
    "depth": "Transformer blocks.",
    "double_softmax": "Softmax twice, as the authors' code does.",
    "evaluate.every": "Rounds between two evaluations; the last round always is one.",
    "gpus": "GPUs that Ray reserves for an actor; fractions share one.",
    "heads": "Attention heads.",
    "hidden": "Units of the hidden layer.",
    "linkage": "How the distance of two groups follows from that of their clients.",
    "lr": "Learning rate.",
    "max_epochs": "Most epochs of a training that ends when it stops improving.",
    "min_client_size": "Fewest samples of a client; everything is drawn again until it holds.",
    "noise_std": "Deviation of the noise around the subspace.",
    "optimizer": "Optimiser of local training.",
    "orientations": "Bins of a histogram.",
    "parity": "As the authors' code does it, or as the paper prints it.",
    "path": "The split file.",
    "per_class": "Training samples of a class.",
    "public_batch": "Public images per step.",
    "rounds": "Rounds of training.",
    "runtime.kind": "ray: on actors; local: in this process; auto: local where actors cost more.",
    "shards_per_client": "Shards of a client.",
    "squared": "Square the distance of the pull, as the authors' code does.",
    "subspace_rank": "Dimensions of a class's subspace.",
    "test_per_class": "Test samples of a class.",
    "width": "Width of an embedding.",
    "widths": "Channels of the convolutions.",
}


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, "## The sections\n", _table(RunConfig, "")]
    shared = {cls.__name__: cls for cls in _nested()}
    for registry in _registries().values():
        parts.append(f"## {registry.what.capitalize()}\n")
        for name in registry.names():
            cls = registry.get(name)
            if not cls.__module__.startswith("raysim."):
                continue  # somebody's own
            parts.append(f"### {registry.key}: {name}\n\n{_first_line(cls)}\n")
            if dataclasses.fields(cls):
                parts.append(_table(cls, "", apart=set(shared)))
    parts.append("## Sections that several methods have\n")
    for cls in shared.values():
        parts.append(f"### {cls.__name__}\n\n{_first_line(cls)}\n")
        parts.append(_table(cls, "", apart=set(shared)))
    return "\n".join(parts)


def _table(cls: type[Any], path: str, apart: set[str] | None = None) -> str:
    rows = ["| setting | default | |", "| --- | --- | --- |"]
    for name, default, says in _rows(cls, path, apart):
        plain = " ".join(says.split()).replace("``", "`").replace("<", "&lt;").replace("|", BAR)
        rows.append(f"| `{name}` | {default} | {plain} |")
    return "\n".join(rows) + "\n"


def _rows(cls: type[Any], path: str, apart: set[str] | None) -> Iterator[tuple[str, str, str]]:
    """Give name, default and meaning; sections named in ``apart`` have a table of their own."""
    words, hints = _docstrings(cls), typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        where = f"{path}.{field.name}" if path else field.name
        hint = hints[field.name]
        if "registry" in field.metadata:
            registry = field.metadata["registry"]
            default = field.default_factory()  # type: ignore[misc]
            shown = "null" if default is None else f"`{type(default).choice_name}`"
            link = f"[{registry.what}](#{registry.what.replace(' ', '-')}), by `{registry.key}:`."
            yield where, shown, f"A choice of {link} {words.get(field.name, '')}".strip()
        elif dataclasses.is_dataclass(hint):
            name = typing.cast("type[Any]", hint).__name__
            if apart is None:
                yield from _rows(typing.cast("type[Any]", hint), where, apart)
            else:
                yield where, "", f"A section: [{name}](#{name.lower()})."
        else:
            yield where, _default(field), _meaning(where, field.name, words, hint)


def _meaning(where: str, name: str, words: dict[str, str], hint: Any) -> str:
    says = words.get(name) or WORDS.get(where) or WORDS.get(name) or ""
    options = [word for word in _options(hint) if isinstance(word, str)]
    choice = f"One of {', '.join(f'`{word}`' for word in options)}. " if len(options) > 1 else ""
    return choice + says


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "needed"
    value = field.default
    value = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _options(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [word for inner in typing.get_args(hint) for word in _options(inner)]


def _docstrings(cls: type[Any]) -> dict[str, str]:
    """Return the string below each field, of the class and those it inherits from."""
    found: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        if part is object or isinstance(part, types.GenericAlias):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0].body  # type: ignore[attr-defined]
        for line, below in itertools.pairwise(body):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and is_text:
                found[line.target.id] = str(below.value.value)
    return found


def _registries() -> dict[str, Registry[Any]]:
    """Return every registry that a config reaches, by what it holds."""
    found: dict[str, Registry[Any]] = {}

    def walk(cls: type[Any]) -> None:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            registry = field.metadata.get("registry")
            if registry is not None and registry.what not in found:
                found[registry.what] = registry
                for name in registry.names():
                    walk(registry.get(name))
            elif dataclasses.is_dataclass(hints[field.name]):
                walk(typing.cast("type[Any]", hints[field.name]))

    walk(RunConfig)
    return found


def _nested() -> list[type[Any]]:
    """Return the sections inside choices, each once."""
    found: dict[type[Any], None] = {}

    def walk(cls: type[Any]) -> None:
        for hint in typing.get_type_hints(cls).values():
            if dataclasses.is_dataclass(hint):
                found[typing.cast("type[Any]", hint)] = None
                walk(typing.cast("type[Any]", hint))

    for registry in _registries().values():
        for name in registry.names():
            walk(registry.get(name))
    return sorted(found, key=lambda cls: cls.__name__)


def _first_line(cls: type[Any]) -> str:
    return (cls.__doc__ or "").strip().split("\n")[0].replace("``", "`").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
