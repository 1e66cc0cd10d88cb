import pytest
import torch

from raysim.errors import ConfigError
from raysim.models.zoo import VitTiny


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_vit_tiny_has_the_count_of_its_layer_list():
    patches = 3 * 16 * 16 * 192 + 192
    positions = 192 + (14 * 14 + 1) * 192
    attention = 192 * 3 * 192 + 3 * 192 + 192 * 192 + 192
    perceptron = 192 * 768 + 768 + 768 * 192 + 192
    block = attention + perceptron + 2 * 2 * 192
    with torch.device("meta"):
        module = VitTiny().build((224, 224, 3), 10)

    assert count(module) == patches + positions + 12 * block + 2 * 192 + 10 * 192 + 10
    assert count(module) == 5_526_346  # "about 5.53 M", raysim/docs/sheets/models.md


def torchvision_name(name):
    """Our name of a weight in torchvision's VisionTransformer."""
    layers = {"norm1": "ln_1", "norm2": "ln_2", "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.3"}
    if name.startswith("body.blocks."):
        number, layer = name.removeprefix("body.blocks.").split(".", 1)
        for ours, theirs in layers.items():
            layer = layer.replace(ours, theirs)
        layer = layer.replace("attn.qkv.", "self_attention.in_proj_")
        layer = layer.replace("attn.proj", "self_attention.out_proj")
        return f"encoder.layers.encoder_layer_{number}.{layer}"
    ends = {
        "body.cls_token": "class_token",
        "body.pos_embed": "encoder.pos_embedding",
        "body.patch_embed.proj": "conv_proj",
        "body.norm": "encoder.ln",
        "head": "heads.head",
    }
    for ours, theirs in ends.items():
        name = theirs + name.removeprefix(ours) if name.startswith(ours) else name
    return name


def test_the_transformer_computes_what_torchvisions_does():
    from torchvision.models import VisionTransformer

    model = VitTiny(patch=4, width=24, depth=2, heads=3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = model.build((8, 8, 3), 5).eval()
        for weight in module.parameters():
            torch.nn.init.normal_(weight, std=0.5)
        images = torch.randn(3, 3, 8, 8)
        theirs = VisionTransformer(8, 4, 2, 3, 24, 96, num_classes=5).eval()
    state = {torchvision_name(name): tensor for name, tensor in module.state_dict().items()}

    theirs.load_state_dict(state)

    # float32 rounding of another order of operations
    torch.testing.assert_close(module(images), theirs(images), rtol=1e-4, atol=1e-4)


def test_every_patch_reaches_the_class_token():
    module = VitTiny(patch=4, width=12, depth=1).build((8, 12, 1), 3)
    images = torch.randn(1, 1, 8, 12, requires_grad=True)

    (gradient,) = torch.autograd.grad(module(images).sum(), images)

    assert (gradient != 0).all()


def test_linear_layers_start_with_deviation_002_and_no_bias():
    module = VitTiny(patch=4, depth=1).build((8, 8, 3), 100)

    for linear in (module.head, module.body.blocks[0].attn.qkv, module.body.blocks[0].mlp.fc1):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.05)  # 19,200 draws or more
        assert not linear.bias.any()


@pytest.mark.parametrize(
    ("patch", "shape", "fitting"),
    [(16, (28, 28, 1), "1, 2, 4, 7, 14, 28"), (16, (8, 8, 1), "1, 2, 4, 8"), (5, (20, 32, 3), "1")],
)
def test_images_that_patches_do_not_cover_are_refused(patch, shape, fitting):
    model = VitTiny(patch=patch)
    got = "x".join(map(str, shape))
    error = rf"model.patch must divide .* got {patch} for {got} .* one of {fitting}"

    for refuse in (model.check, lambda shape: model.build(shape, 10)):
        with pytest.raises(ConfigError, match=error):
            refuse(shape)


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"patch": 0}, "patch must be at least 1, got 0"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"heads": -3}, "heads must be at least 1"),
        ({"width": 193}, "width must be divisible by the number of heads, got 193; .* heads, 3"),
    ],
)
def test_impossible_sizes_are_refused(setting, error):
    with pytest.raises(ConfigError, match=error):
        VitTiny(**setting)
