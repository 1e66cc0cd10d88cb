import warnings

import numpy as np
import pytest
import torch

from raysim.errors import ConfigError
from raysim.models.params import (
    image_shape_of,
    initial_tree,
    layout,
    load_tree,
    module_for,
    named_arrays,
    seeded,
    to_tree,
)
from raysim.models.zoo import (
    Cnn,
    FourConv,
    LeNet5,
    Logistic,
    Mlp,
    MobileNet,
    ResNet10,
    SmallCnn,
    VitTiny,
)

SHAPE = (20, 20, 1)
SOME = [
    Logistic(),
    Cnn(),
    SmallCnn(),
    LeNet5(),
    FourConv(),
    FourConv(track_running_stats=False),
    ResNet10(),
    MobileNet(),
    VitTiny(patch=4, width=12, depth=2),
]


@pytest.mark.parametrize("model", [Mlp(), *SOME], ids=str)
def test_a_tree_survives_the_way_through_a_module(model):
    shapes = layout(model, SHAPE, 4)
    rng = np.random.default_rng(0)
    tree = {
        "trainable": rng.standard_normal(shapes.num_trainable).astype(np.float32),
        "buffers": rng.random(sum(np.prod(shape) for _, shape in shapes.buffers)).astype(
            np.float32
        ),
    }
    module = model.build(SHAPE, 4)

    load_tree(module, tree)
    back = to_tree(module)

    assert list(back) == ["trainable", "buffers"]
    assert all(np.array_equal(back[part], tree[part]) for part in tree)
    assert all(array.dtype == np.float32 for array in back.values())


@pytest.mark.parametrize("model", SOME, ids=str)
def test_named_arrays_are_the_module_state_without_counters(model):
    module = model.build(SHAPE, 4)
    state = {k: v for k, v in module.state_dict().items() if "num_batches" not in k}

    found = named_arrays(to_tree(module), layout(model, SHAPE, 4))

    assert set(found) == set(state)
    assert all(np.array_equal(found[k], v.numpy()) for k, v in state.items())


def test_channels_last_modules_give_the_same_tree_as_plain_ones():
    tree = initial_tree(SmallCnn(), SHAPE, 4, seed=3)
    module = module_for(SmallCnn(), SHAPE, 4)

    load_tree(module, tree)

    assert module.body[4].weight.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(to_tree(module)["trainable"], tree["trainable"])


@pytest.mark.parametrize("model", SOME, ids=str)
def test_channels_last_modules_give_the_logits_of_plain_ones(model):
    tree = initial_tree(model, SHAPE, 4, seed=3)
    plain, fast = model.build(SHAPE, 4).eval(), module_for(model, SHAPE, 4).eval()
    images = torch.randn(2, 1, 20, 20, generator=torch.Generator().manual_seed(0))

    load_tree(plain, tree)
    load_tree(fast, tree)

    # rounding of other kernels: fast depends on the memory order
    torch.testing.assert_close(fast(images), plain(images), rtol=1e-4, atol=1e-5)
    assert np.array_equal(to_tree(fast)["trainable"], tree["trainable"])


@pytest.mark.parametrize("model", [Mlp(), FourConv(track_running_stats=False)], ids=str)
def test_models_without_running_statistics_have_empty_buffers(model):
    tree = initial_tree(model, SHAPE, 4, seed=0)

    assert tree["buffers"].shape == (0,)
    assert tree["buffers"].dtype == np.float32
    load_tree(module_for(model, SHAPE, 4), tree)


def test_batch_norm_statistics_are_buffers():
    shapes = layout(SmallCnn(), (8, 8, 1), 10)

    assert sum(np.prod(shape) for _, shape in shapes.buffers) == 2 * 16 + 2 * 32
    assert [name.rsplit(".", 1)[1] for name, _ in shapes.buffers] == [
        "running_mean",
        "running_var",
    ] * 2


def test_loading_read_only_arrays_warns_nothing_and_shares_nothing():
    tree = initial_tree(SmallCnn(), SHAPE, 4, seed=0)
    for array in tree.values():
        array.flags.writeable = False
    before = {part: array.copy() for part, array in tree.items()}
    module = SmallCnn().build(SHAPE, 4)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_tree(module, tree)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.add_(1)

    assert all(np.array_equal(tree[part], before[part]) for part in tree)


def test_a_taken_tree_does_not_follow_the_module():
    module = Logistic().build(SHAPE, 4)
    tree = to_tree(module)
    before = tree["trainable"].copy()

    with torch.no_grad():
        module.head.weight.add_(1)

    assert np.array_equal(tree["trainable"], before)


def test_loading_clears_batch_counters():
    module = SmallCnn().build((8, 8, 1), 3).train()
    tree = to_tree(module)
    module(torch.randn(2, 1, 8, 8))

    load_tree(module, tree)

    assert module.body[1].num_batches_tracked == 0


def test_a_tree_of_another_model_is_refused():
    tree = initial_tree(Mlp(hidden=5), SHAPE, 4, seed=0)

    with pytest.raises(ConfigError, match=r"trainable array must have shape .* other model"):
        load_tree(Mlp(hidden=6).build(SHAPE, 4), tree)
    with pytest.raises(ConfigError, match="trainable"):
        named_arrays(tree, layout(Mlp(hidden=6), SHAPE, 4))


def test_initial_weights_depend_on_the_seed_alone():
    first = initial_tree(SmallCnn(), SHAPE, 4, seed=1)
    torch.randn(7)
    again = initial_tree(SmallCnn(), SHAPE, 4, seed=1)
    other = initial_tree(SmallCnn(), SHAPE, 4, seed=2)

    assert np.array_equal(first["trainable"], again["trainable"])
    assert not np.array_equal(first["trainable"], other["trainable"])


def test_building_and_seeding_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()

    initial_tree(SmallCnn(), SHAPE, 4, seed=1)
    module_for(SmallCnn(), (11, 11, 1), 4)
    layout(SmallCnn(), (13, 13, 1), 4)
    with seeded(5):
        inside = torch.rand(3)

    assert torch.equal(torch.random.get_rng_state(), before)
    with seeded(5):
        assert torch.equal(torch.rand(3), inside)


def test_a_process_keeps_one_module_per_kind_and_slot():
    module = module_for(Mlp(), SHAPE, 4)

    assert module_for(Mlp(), SHAPE, 4) is module
    assert module_for(Mlp(), SHAPE, 4, device="cpu", slot=0) is module
    assert module_for(Mlp(hidden=3), SHAPE, 4) is not module
    assert module_for(Mlp(), SHAPE, 4, slot=1) is not module


def test_image_shape_puts_channels_last():
    assert image_shape_of(np.zeros((5, 3, 8, 9))) == (8, 9, 3)
