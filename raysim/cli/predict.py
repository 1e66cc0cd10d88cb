"""``raysim predict``: what a run's model says about images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import trust_option
from raysim.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from raysim.runs.models import RunModels
    from raysim.runs.saved_models import SavedModel


@dataclass(frozen=True)
class Prediction:
    """One image: its most probable classes, and the label it came with."""

    name: str
    top: tuple[tuple[int, float], ...]
    label: int | None = None

    @property
    def is_right(self) -> bool:
        return self.top[0][0] == self.label


@click.command("predict")
@click.argument("run")
@click.argument("images", nargs=-1, metavar="[IMAGES]...")
@trust_option
@click.option("--group", type=int, metavar="M", help="The model of group M.")
@click.option("--client", type=int, metavar="K", help="The model that client K uses.")
@click.option("--data-test", is_flag=True, help="The dataset's test images of the model's tasks.")
@click.option("--top", type=click.IntRange(min=1), default=1, metavar="N", help="N classes each.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the predictions as CSV, and print only what they add up to.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last line.")
def command(
    run: str,
    images: tuple[str, ...],
    group: int | None,
    client: int | None,
    data_test: bool,
    top: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Classify IMAGES with a model of RUN, a run directory or URL.

    IMAGES are image files, folders of them, or npy and npz with uint8 (N, H, W, C), x and y. They
    are cut and resized to the model's shape and normalised as in training. Where labels are known
    (y in npz, folders named like classes) the accuracy is printed.

    \b
    raysim predict runs/quickstart/fb_nll/seed0 --client 3 photos/*.png
    raysim predict runs/quickstart/fb_nll/seed0 --group 0 --data-test
    """  # noqa: D301 -- click reads the real \b character
    from raysim.runs.models import RunModels
    from raysim.storage.objects import place

    if bool(images) == data_test:
        raise ConfigError("give IMAGES or --data-test, one of them; see `raysim predict --help`")
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"--out: no folder {out.absolute().parent}; make it first")
    if out is not None and out.suffix != ".csv":
        raise ConfigError(f"--out must name a .csv file, got {out}; correct it")
    models = RunModels(place(run))
    saved = models.load(models.choose(group=group, client=client))
    read = _test_sets(models, saved) if data_test else _given(images, saved)
    classified = list(_classified(read, saved, top))
    found = [row for _, rows in classified for row in rows]
    if out is not None:
        _write_csv(out, found, saved, top)
    scores = _scores(classified, found)
    if as_json:
        click.echo(json.dumps(_json(models, saved, found, scores)))
        return
    if out is None:
        for row in found:
            click.echo(_line(row, saved))
    for score in scores:
        click.echo(
            f"accuracy {100 * score['accuracy']:.2f} % ({score['correct']} of {score['total']})  "
            f"{score['what']}  model {saved.facts.name}"
        )
    if out is not None:
        click.echo(f"{len(found)} predictions written to {out}")


# ---- images --------------------------------------------------------------------------------

Batches = Iterator[tuple[str, list[str], "np.ndarray", "list[int | None]"]]
"""What the images are, their names, pixels (N, H, W, C) and labels."""


def _given(sources: tuple[str, ...], saved: SavedModel) -> Batches:
    """Yield the user's images; say at the end what had to be done to them."""
    from raysim.data.datasets.pictures import Changed, Wanted, list_sources, read_blocks

    facts, changed = saved.facts, Changed()
    wanted = Wanted(facts.image_shape, facts.pixels, facts.class_names)
    for block in read_blocks(list_sources(sources, wanted), wanted, changed):
        yield "", block.names, block.images, block.labels
    height, width, channels = facts.image_shape
    if changed.resized:
        click.echo(
            f"raysim: {changed.resized} images were cut to a centred {width}x{height} shape and "
            "resized (bilinear), as photo sets are for training",
            err=True,
        )
    if changed.recoloured:
        kind = "grey" if channels == 1 else "RGB"
        click.echo(f"raysim: {changed.recoloured} images were converted to {kind}", err=True)
    for name in dict.fromkeys(changed.transposed):
        click.echo(f"raysim: {name} was read as (N, C, H, W)", err=True)


def _test_sets(models: RunModels, saved: SavedModel) -> Batches:
    """Yield the test images of each task that the model's clients have."""
    import numpy as np

    store = models.data.store
    labels = np.asarray(store.test_labels)
    for task in saved.facts.tasks or (tuple(range(saved.facts.classes)),):
        ids = np.flatnonzero(np.isin(labels, task))
        names = [f"test[{i}]" for i in ids]
        given: list[int | None] = [int(label) for label in labels[ids]]
        words = ", ".join(saved.facts.class_names[c] for c in task)
        yield f"task of classes {words}", names, store.test_images[ids], given


# ---- model ---------------------------------------------------------------------------------


def _classified(
    batches: Batches, saved: SavedModel, top: int
) -> Iterator[tuple[str, list[Prediction]]]:
    import numpy as np

    from raysim.data.store import prepare
    from raysim.steps.local_training import client_logits

    facts = saved.facts
    arguments = {"model": saved.model, "classes": facts.classes, "kernel": facts.kernel}
    for what, names, images, labels in batches:
        ready = prepare(images, facts.mean, facts.std, facts.normalize)  # type: ignore[arg-type]
        logits = client_logits(saved.tree, ready, arguments).astype(np.float64)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        order = np.argsort(-logits, axis=1, kind="stable")[:, :top]  # the lowest class wins a tie
        yield (
            what,
            [
                Prediction(name, tuple((int(c), float(share[c])) for c in first), label)
                for name, first, share, label in zip(names, order, shares, labels, strict=True)
            ],
        )


# ---- what is said --------------------------------------------------------------------------


def _scores(
    classified: list[tuple[str, list[Prediction]]], found: list[Prediction]
) -> list[dict[str, Any]]:
    """Return accuracies where labels are known: one per task, or one for all given images."""
    named = [(what, rows) for what, rows in classified if what] or [("", found)]
    scores = []
    for what, rows in named:
        known = [row for row in rows if row.label is not None]
        if known:
            correct = sum(row.is_right for row in known)
            scores.append(
                {
                    "what": what or "labelled images",
                    "correct": correct,
                    "total": len(known),
                    "accuracy": correct / len(known),
                }
            )
    return scores


def _line(row: Prediction, saved: SavedModel) -> str:
    names = saved.facts.class_names
    words = [f"{names[c]} {100 * share:.1f} %" for c, share in row.top]
    if row.label is not None and not row.is_right:
        words.append(f"(label {names[row.label]})")
    return "  ".join([row.name, *words])


def _json(
    models: RunModels, saved: SavedModel, found: list[Prediction], scores: list[dict[str, Any]]
) -> dict[str, Any]:
    names = saved.facts.class_names
    rows = [
        {
            "name": row.name,
            "class": names[row.top[0][0]],
            "probability": row.top[0][1],
            "top": [{"class": names[c], "probability": share} for c, share in row.top],
            "label": None if row.label is None else names[row.label],
        }
        for row in found
    ]
    facts = {"run": models.storage.root, "model": saved.facts.name, "round": saved.facts.round}
    return {**facts, "clients": list(saved.facts.clients), "images": rows, "accuracy": scores}


def _write_csv(out: Path, found: list[Prediction], saved: SavedModel, top: int) -> None:
    import csv
    import io

    from raysim.storage.files import save_output

    names = saved.facts.class_names
    top = min(top, saved.facts.classes)
    more = [f"{what}_{n}" for n in range(2, top + 1) for what in ("class", "probability")]
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["file", "class", "probability", *more, "label"])
    for row in found:
        pairs = [cell for c, share in row.top for cell in (names[c], f"{share:.6f}")]
        table.writerow([row.name, *pairs, "" if row.label is None else names[row.label]])
    save_output(out, text.getvalue().encode())
