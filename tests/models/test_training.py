import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from raysim.core.threads import one_thread
from raysim.models.evaluation import logits, score
from raysim.models.params import initial_tree, load_tree, module_for, to_tree
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import MODELS, Logistic, Mlp, SmallCnn
from raysim.seeding import stream

SHAPE, CLASSES = (8, 8, 1), 3
PLAIN = TrainSettings(epochs=2, batch_size=8, lr=0.05)


def toy(samples, seed=0):
    """Images of noise with one bright corner per class."""
    rng = stream(seed, "toy")
    labels = rng.integers(0, CLASSES, size=samples)
    images = rng.standard_normal((samples, 1, 8, 8)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        top, left = divmod(int(label), 2)
        image[0, 4 * top : 4 * top + 4, 4 * left : 4 * left + 4] += 2.0
    return images, labels


def train(model, tree, data, settings, *, seed=0, **more):
    rng = stream(seed, "train")
    return train_client(model, tree, *data, settings, rng=rng, classes=CLASSES, **more)


def same_bits(one, two):
    return set(one) == set(two) and all(one[p].tobytes() == two[p].tobytes() for p in one)


def reference(model, tree, data, settings, *, seed=0):
    """The same training with torch.optim, written out."""
    images, labels = data
    module = model.build(SHAPE, CLASSES).train()
    load_tree(module, tree)
    rng = stream(seed, "train")
    rng.integers(2**63)  # train_client first draws the seed of torch
    common = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adam":
        optimizer = torch.optim.Adam(module.parameters(), **common)
    else:
        optimizer = torch.optim.SGD(module.parameters(), momentum=settings.momentum, **common)
    for _ in range(settings.epochs):
        order = rng.permutation(len(labels))
        losses = []
        for start in range(0, len(order), settings.batch_size):
            index = order[start : start + settings.batch_size]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                module(torch.from_numpy(images[index])), torch.from_numpy(labels[index])
            )
            loss.backward()
            optimizer.step()
            losses += [loss.item()] * len(index)
    return to_tree(module), float(np.mean(losses))


@pytest.mark.parametrize("name", ["logistic", "mlp", "small_cnn"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"momentum": 0.5, "weight_decay": 1e-3},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"optimizer": "adam", "lr": 1e-3},
        {"optimizer": "adam", "lr": 1e-3, "weight_decay": 1e-2},
    ],
    ids=str,
)
def test_training_equals_a_plain_torch_loop(name, change):
    model, data = MODELS.get(name)(), toy(21)
    settings = replace(PLAIN, **change)
    tree = initial_tree(model, SHAPE, CLASSES, seed=0)

    trained, report = train(model, tree, data, settings)
    expected, loss = reference(model, tree, data, settings)

    # float32 rounding of another order of operations, not of another rule; Adam divides gradients
    # by their own size, so that the rounding of those near 0 becomes a share of lr.
    largest = 1e-2 * settings.lr if settings.optimizer == "adam" else 1e-6
    np.testing.assert_allclose(trained["trainable"], expected["trainable"], atol=largest)
    np.testing.assert_allclose(trained["buffers"], expected["buffers"], atol=1e-6, rtol=1e-6)
    assert report.loss == pytest.approx(loss, abs=1e-6)
    assert (report.steps, report.samples) == (6, 21)  # 21 = 8 + 8 + 5, twice


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_same_arguments_give_same_bits_whoever_trained_before(optimizer):
    settings = replace(PLAIN, optimizer=optimizer, lr=0.01, augment="crop_flip")
    settings = replace(settings, momentum=0.9 if optimizer == "sgd" else 0.0)
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)

    first, report = train(SmallCnn(), tree, toy(21), settings)
    other, _ = train(SmallCnn(), first, toy(13, seed=1), replace(PLAIN, lr=0.3), seed=1)
    logits(SmallCnn(), other, toy(5)[0], classes=CLASSES)
    module_for(SmallCnn(), SHAPE, CLASSES)(torch.randn(4, 1, 8, 8)).sum().backward()
    again, report_again = train(SmallCnn(), tree, toy(21), settings)

    assert same_bits(first, again)
    assert report == report_again
    assert not same_bits(first, other)


def test_the_order_of_samples_comes_from_the_generator():
    tree = initial_tree(Mlp(), SHAPE, CLASSES, seed=0)

    one, _ = train(Mlp(), tree, toy(21), PLAIN, seed=0)
    two, _ = train(Mlp(), tree, toy(21), PLAIN, seed=1)

    assert not same_bits(one, two)


def test_read_only_and_misaligned_arrays_train_to_the_same_bits_and_stay_as_they_are():
    images, labels = toy(21)
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)
    expected, _ = train(SmallCnn(), tree, (images, labels), PLAIN)
    shifted = np.empty(images.size + 1, dtype=np.float32)[1:].reshape(images.shape)
    shifted[:] = images
    arrays = [shifted, labels.copy(), *tree.values()]
    for array in arrays:
        array.flags.writeable = False
    before = [array.tobytes() for array in arrays]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = train(SmallCnn(), tree, (shifted, arrays[1]), PLAIN)

    assert same_bits(found, expected)
    assert [array.tobytes() for array in arrays] == before
    assert found["trainable"].flags.writeable


def test_batch_norm_statistics_move_with_the_data():
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)

    trained, _ = train(SmallCnn(), tree, toy(21), PLAIN)

    assert not np.isclose(trained["buffers"], tree["buffers"]).any()


@pytest.mark.parametrize("name", ["logistic", "mlp", "small_cnn"])
@pytest.mark.parametrize("augment", ["none", "flip", "crop_flip"])
def test_a_client_with_one_sample_trains(name, augment):
    model = MODELS.get(name)()
    tree = initial_tree(model, SHAPE, CLASSES, seed=0)

    trained, report = train(model, tree, toy(1), replace(PLAIN, augment=augment))

    assert (report.steps, report.samples) == (2, 1)
    assert not same_bits(trained, tree)


def test_a_client_without_samples_returns_the_model_unchanged():
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)

    trained, report = train(SmallCnn(), tree, toy(0), PLAIN)

    assert same_bits(trained, tree)
    assert (report.steps, report.samples) == (0, 0)
    assert np.isnan(report.loss)


def test_an_exploding_loss_names_epoch_step_rate_and_remedy():
    tree = initial_tree(Mlp(), SHAPE, CLASSES, seed=0)

    with pytest.raises(
        FloatingPointError, match=r"epoch 1 of 2, step \d, .* lr 1e\+30; lower train.lr$"
    ):
        train(Mlp(), tree, toy(21), replace(PLAIN, lr=1e30))


def test_weights_that_overflow_in_the_very_last_step_are_refused():
    images, labels = toy(4)
    tree = initial_tree(Logistic(), SHAPE, CLASSES, seed=0)

    with pytest.raises(FloatingPointError, match="the weights are not finite"):
        train(Logistic(), tree, (images * 1e30, labels), replace(PLAIN, lr=1e10, epochs=1))


def test_non_finite_images_are_named_as_a_possible_cause():
    images, labels = toy(4)
    tree = initial_tree(Logistic(), SHAPE, CLASSES, seed=0)

    with pytest.raises(FloatingPointError, match=r"step 1, .* non-finite images"):
        train(Logistic(), tree, (images * np.nan, labels), PLAIN)


@pytest.mark.parametrize("name", ["logistic", "mlp", "small_cnn"])
def test_a_few_epochs_learn_the_toy_problem(name):
    model = MODELS.get(name)()
    tree = initial_tree(model, SHAPE, CLASSES, seed=0)

    trained, _ = train(model, tree, toy(150), replace(PLAIN, epochs=5))

    held_out = toy(100, seed=9)
    images, labels = held_out
    after, before = (
        score(logits(model, made, images, classes=CLASSES), labels) for made in (trained, tree)
    )
    assert after.accuracy > 0.9
    assert before.accuracy < 0.7


def test_bits_do_not_depend_on_the_threads_outside():
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)
    threads = torch.get_num_threads()
    found = []
    try:
        for outside in (1, 2):
            torch.set_num_threads(outside)
            with one_thread("torch"):
                found.append(train(SmallCnn(), tree, toy(40), PLAIN)[0])
    finally:
        torch.set_num_threads(threads)

    assert same_bits(*found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_agrees_with_cpu_and_with_itself():
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)

    cpu, _ = train(SmallCnn(), tree, toy(21), PLAIN)
    gpu, _ = train(SmallCnn(), tree, toy(21), PLAIN, device="cuda")
    again, _ = train(SmallCnn(), tree, toy(21), PLAIN, device="cuda")

    assert same_bits(gpu, again)
    np.testing.assert_allclose(gpu["trainable"], cpu["trainable"], atol=1e-2)  # TF32 convolutions
