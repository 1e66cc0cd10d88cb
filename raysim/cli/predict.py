"""``raysim predict``: what a run's model says about images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import trust_option
from raysim.errors import ConfigError
from raysim.storage.files import json_text

if TYPE_CHECKING:
    import numpy as np

    from raysim.runs.models import RunModels
    from raysim.runs.saved_models import SavedModel


@dataclass(frozen=True)
class Prediction:
    """One image: its most probable classes, and the label it came with, by their names."""

    name: str
    of: str
    """What is scored together: the images of a task, or all that have labels."""
    top: Sequence[tuple[str, float]]
    label: str | None
    is_right: bool


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
    found = list(_classified(read, saved, top))
    if out is not None:
        _write_csv(out, found, min(top, saved.facts.classes))
    scores = _scores(found)
    if as_json:
        facts = {"run": models.storage.root, "model": saved.facts.name, "round": saved.facts.round}
        facts |= {"clients": list(saved.facts.clients), "images": [_plain(row) for row in found]}
        click.echo(json_text({**facts, "accuracy": scores}))
        return
    for row in found if out is None else ():
        words = [f"{name} {100 * share:.1f} %" for name, share in row.top]
        words += [f"(label {row.label})"] if row.label is not None and not row.is_right else []
        click.echo("  ".join([row.name, *words]))
    for score in scores:
        click.echo(
            f"accuracy {100 * score['accuracy']:.2f} % ({score['correct']} of {score['total']})  "
            f"{score['what']}  model {saved.facts.name}"
        )
    if out is not None:
        click.echo(f"{len(found)} predictions written to {out}")


# ---- images --------------------------------------------------------------------------------

Batches = Iterator[tuple[str, list[str], "np.ndarray", "list[int | None]"]]
"""What they are scored as, their names, pixels (N, H, W, C) and labels."""


def _given(sources: tuple[str, ...], saved: SavedModel) -> Batches:
    """Yield the user's images; say at the end what had to be done to them."""
    from raysim.data.datasets.pictures import Changed, Wanted, list_sources, read_blocks

    facts, changed = saved.facts, Changed()
    wanted = Wanted(facts.image_shape, facts.pixels, facts.class_names)
    for block in read_blocks(list_sources(sources, wanted), wanted, changed):
        yield "labelled images", block.names, block.images, block.labels
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


def _classified(batches: Batches, saved: SavedModel, top: int) -> Iterator[Prediction]:
    import numpy as np

    from raysim.data.store import prepare
    from raysim.steps.local_training import client_logits

    facts, classes = saved.facts, saved.facts.class_names
    arguments = {"model": saved.model, "classes": facts.classes, "kernel": facts.kernel}
    for what, names, images, labels in batches:
        ready = prepare(images, facts.mean, facts.std, facts.normalize)  # type: ignore[arg-type]
        logits = client_logits(saved.tree, ready, arguments).astype(np.float64)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        order = np.argsort(-logits, axis=1, kind="stable")[:, :top]  # the lowest class wins a tie
        for name, first, share, label in zip(names, order, shares, labels, strict=True):
            best = [(classes[c], float(share[c])) for c in first]
            given = None if label is None else classes[label]
            yield Prediction(name, what, best, given, is_right=bool(first[0] == label))


# ---- what is said --------------------------------------------------------------------------


def _scores(found: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return accuracies where labels are known: one per task, or one for all given images."""
    scores = []
    for what in dict.fromkeys(row.of for row in found):
        right = [row.is_right for row in found if row.of == what and row.label is not None]
        if right:
            facts = {"what": what, "correct": sum(right), "total": len(right)}
            scores.append({**facts, "accuracy": sum(right) / len(right)})
    return scores


def _plain(row: Prediction) -> dict[str, Any]:
    top = [{"class": name, "probability": share} for name, share in row.top]
    return {"name": row.name, **top[0], "top": top, "label": row.label}


def _write_csv(out: Path, found: Sequence[Prediction], top: int) -> None:
    import csv
    import io

    from raysim.storage.files import save_output

    more = [f"{what}_{n}" for n in range(2, top + 1) for what in ("class", "probability")]
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["file", "class", "probability", *more, "label"])
    for row in found:
        pairs = [cell for name, share in row.top for cell in (name, f"{share:.6f}")]
        table.writerow([row.name, *pairs, row.label or ""])
    save_output(out, text.getvalue().encode())
