import warnings

import numpy as np
import pytest
import torch

from raysim.core.threads import one_thread
from raysim.models.evaluation import Evaluation, logits, sample_losses, score, top_accuracy
from raysim.models.params import initial_tree, load_tree
from raysim.models.zoo import FourConv, Logistic, SmallCnn
from raysim.seeding import stream

SHAPE, CLASSES = (8, 8, 1), 4


def some_images(samples):
    rng = stream(0, "images")
    images = rng.standard_normal((samples, 1, 8, 8)).astype(np.float32)
    return images, rng.integers(0, CLASSES, size=samples)


def some_tree():
    """A model whose batch norm has seen data, so that train and eval mode differ."""
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)
    return tree | {"buffers": stream(0, "buffers").random(tree["buffers"].shape, np.float32) + 0.5}


def evaluate(model, tree, images, labels, **how):
    return score(logits(model, tree, images, **how), labels)


def test_a_case_worked_by_hand():
    # one pixel, three classes: logits x * (0, 1, 2) without bias
    tree = {"trainable": np.array([0, 1, 2, 0, 0, 0], np.float32), "buffers": np.zeros(0)}
    images = np.array([1.0, -1.0, 0.0], np.float32).reshape(3, 1, 1, 1)
    labels = np.array([2, 1, 0])

    found = evaluate(Logistic(), tree, images, labels, classes=3)

    # largest logits: class 2, class 0, and a tie that goes to class 0
    assert (found.correct, found.total) == (2, 3)
    assert found.accuracy == pytest.approx(2 / 3)
    e = np.e
    first = -np.log(e**2 / (1 + e + e**2))
    second = -np.log(e**-1 / (1 + e**-1 + e**-2))
    assert found.loss == pytest.approx((first + second + np.log(3)) / 3, rel=1e-6)


def test_classes_outside_the_set_can_win_the_argmax():
    tree = {"trainable": np.array([0, 1, 2, 0, 0, 0], np.float32), "buffers": np.zeros(0)}
    images, labels = np.ones((2, 1, 1, 1), np.float32), np.array([0, 1])

    assert evaluate(Logistic(), tree, images, labels, classes=3).correct == 0


def test_evaluation_equals_a_plain_torch_loop():
    images, labels = some_images(30)
    module = SmallCnn().build(SHAPE, CLASSES).eval()
    load_tree(module, some_tree())
    with torch.no_grad():
        expected = module(torch.from_numpy(images))

    found = evaluate(SmallCnn(), some_tree(), images, labels, classes=CLASSES)

    loss = torch.nn.functional.cross_entropy(expected, torch.from_numpy(labels))
    assert found.loss == pytest.approx(loss.item(), rel=1e-5)
    assert found.correct == int((expected.argmax(1).numpy() == labels).sum())


def test_batches_change_neither_predictions_nor_loss_beyond_rounding():
    images, labels = some_images(30)

    whole = evaluate(SmallCnn(), some_tree(), images, labels, classes=CLASSES)
    parts = evaluate(SmallCnn(), some_tree(), images, labels, classes=CLASSES, batch_size=7)

    assert whole.correct == parts.correct
    assert whole.loss == pytest.approx(parts.loss, rel=1e-5)


def test_an_image_is_judged_alone_under_batch_norm():
    images, _ = some_images(30)

    together = logits(SmallCnn(), some_tree(), images, classes=CLASSES)
    alone = logits(SmallCnn(), some_tree(), images[:1], classes=CLASSES)

    np.testing.assert_allclose(together[:1], alone, atol=1e-5)


def test_evaluation_gives_same_bits_twice_and_leaves_read_only_arguments_alone():
    images, labels = some_images(30)
    tree = some_tree()
    for array in (images, labels, *tree.values()):
        array.flags.writeable = False

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = logits(SmallCnn(), tree, images, classes=CLASSES)
        evaluate(SmallCnn(), initial_tree(SmallCnn(), SHAPE, CLASSES, 5), images, labels, classes=4)
        again = logits(SmallCnn(), tree, images, classes=CLASSES)

    assert first.tobytes() == again.tobytes()
    assert first.dtype == np.float32


def test_an_empty_set_has_no_accuracy():
    found = evaluate(SmallCnn(), some_tree(), *some_images(0), classes=CLASSES)

    assert (found.correct, found.total) == (0, 0)
    assert np.isnan(found.accuracy)
    assert np.isnan(found.loss)


def test_losses_of_huge_logits_stay_finite():
    losses = sample_losses(np.array([[1e30, 0.0], [1e4, 0.0]], np.float32), np.array([0, 1]))

    assert losses.tolist() == [0.0, 1e4]


def test_accuracy_is_the_share_of_correct_samples():
    assert Evaluation(correct=3, total=4, loss=0.5).accuracy == 0.75


def test_one_thread_holds_inside_and_restores_afterwards():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread("torch"), one_thread("torch"):
            inside = torch.get_num_threads()
        after = torch.get_num_threads()
        with pytest.raises(KeyError), one_thread("torch"):
            raise KeyError
        after_error = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)

    assert inside == 1
    assert (after, after_error) == (2, 2)


def test_images_that_are_normalised_together_run_in_batches_of_a_fixed_size():
    images, _ = some_images(20)
    images = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)))
    trees = {
        kept: initial_tree(FourConv(track_running_stats=kept), (16, 16, 1), CLASSES, seed=0)
        for kept in (True, False)
    }

    def found(kept, images, rows):
        model = FourConv(track_running_stats=kept)
        return logits(model, trees[kept], images, classes=CLASSES, normed_rows=rows)

    parts = [found(False, images[at : at + 8], 100) for at in (0, 8, 16)]
    np.testing.assert_array_equal(found(False, images, 8), np.concatenate(parts))
    assert not np.allclose(found(False, images, 8), found(False, images, 20), atol=1e-3)
    np.testing.assert_array_equal(found(True, images, 8), found(True, images, 20))


def test_top_accuracy_worked_by_hand():
    # Ranks of the labels: 0 (largest), 2, and 5 (smallest but none of six).
    found = np.array([[9, 1, 2, 3, 4, 5], [1, 9, 8, 7, 6, 5], [1, 9, 8, 7, 6, 5]])
    labels = np.array([0, 3, 0])

    assert top_accuracy(found, labels) == pytest.approx(2 / 3)
    assert top_accuracy(found, labels, top=1) == pytest.approx(1 / 3)
    assert top_accuracy(found, labels, top=3) == pytest.approx(2 / 3)
    assert top_accuracy(found, labels, top=6) == 1.0


def test_top_accuracy_is_the_slow_sort_and_the_lower_class_wins_a_tie():
    rng = stream(0, "ties")
    found, labels = rng.integers(4, size=(200, 8)), rng.integers(8, size=200)
    for top in (1, 3, 5):
        hits = [
            y in sorted(range(8), key=lambda c: (-row[c], c))[:top]
            for row, y in zip(found, labels, strict=True)
        ]

        assert top_accuracy(found, labels, top=top) == pytest.approx(np.mean(hits))
    assert top_accuracy(found, labels, top=1) == np.mean(found.argmax(axis=1) == labels)


def test_top_accuracy_of_no_images_is_nan():
    assert np.isnan(top_accuracy(np.zeros((0, 9)), np.zeros(0, int)))
