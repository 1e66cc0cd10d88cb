"""Photo sets, on small pictures that the tests draw."""

import numpy as np
import pytest
from PIL import Image

from raysim.data.datasets import DATASETS
from raysim.data.datasets.classes import CLOTHING1M_NAMES
from raysim.errors import DataError
from raysim.settings import SettingError

RED, GREEN, BLUE = (250, 0, 0), (0, 250, 0), (0, 0, 250)


def draw(path, colour, size=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def load(name, root, **settings):
    return DATASETS.get(name)(size=8, **settings).load(root)


def draw_classes(root, names, test="test"):
    for number, name in enumerate(names):
        for split in ("train", test):
            draw(root / split / name / "a.png", (number, 0, 0))


@pytest.mark.parametrize("test", ["test", "val"])
def test_folders_are_classes_in_the_order_of_their_names(tmp_path, test):
    draw(tmp_path / "train" / "zebra" / "1.png", RED)
    draw(tmp_path / "train" / "ant" / "b.jpg", GREEN)
    draw(tmp_path / "train" / "ant" / "a.PNG", BLUE)
    draw(tmp_path / test / "zebra" / "deep" / "1.png", RED)
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not a photo")

    arrays = load("image_folder", tmp_path)

    assert arrays.class_names == ("ant", "zebra")
    assert arrays.train_labels.tolist() == [0, 0, 1]
    assert arrays.test_labels.tolist() == [1]
    assert arrays.train_images.shape == (3, 8, 8, 3)
    assert arrays.train_images.dtype == np.uint8
    np.testing.assert_array_equal(arrays.train_images[0, 4, 4], BLUE)
    # JPEG rounds colours by a few units.
    np.testing.assert_allclose(arrays.train_images[1, 4, 4].astype(int), GREEN, atol=5)


def test_photos_lose_their_margins_not_their_proportions(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200  # the centred square is what remains
    for split in ("train", "test"):
        folder = tmp_path / split / "one"
        folder.mkdir(parents=True)
        Image.fromarray(wide).save(folder / "wide.png")

    image = load("image_folder", tmp_path).train_images[0]

    assert (image[:, 1:-1] == 200).all()
    assert image.min() > 150  # the outermost columns blend with what was cut off


def test_grey_and_transparent_photos_become_colour(tmp_path):
    for split in ("train", "test"):
        folder = tmp_path / split / "one"
        folder.mkdir(parents=True)
        Image.new("L", (9, 9), 77).save(folder / "grey.png")
        Image.new("RGBA", (9, 9), (77, 77, 77, 255)).save(folder / "see.png")

    assert (load("image_folder", tmp_path).train_images == 77).all()


def test_statistics_come_from_the_training_photos(tmp_path):
    draw(tmp_path / "train" / "one" / "a.png", (255, 0, 51))
    draw(tmp_path / "test" / "one" / "a.png", (0, 255, 0))

    assert load("image_folder", tmp_path).mean == pytest.approx((1.0, 0.0, 0.2))


def test_a_set_may_lie_in_a_folder_of_its_name(tmp_path):
    draw_classes(tmp_path / "image_folder", ["a", "b"])

    assert load("image_folder", tmp_path).class_names == ("a", "b")


def test_the_data_folder_of_the_machine_is_searched_without_root(own_cache, tmp_path):
    draw_classes(tmp_path / "data" / "image_folder", ["a", "b"])

    assert load("image_folder", None).class_names == ("a", "b")


@pytest.mark.parametrize("name", ["image_folder", "clothing1m", "mini_webvision"])
@pytest.mark.parametrize("given", [True, False])
def test_missing_photos_say_what_to_do(name, given, own_cache, tmp_path):
    with pytest.raises(DataError, match=f"{name}.*train/<class>.*data.root"):
        load(name, tmp_path if given else None)


def test_an_unreadable_photo_is_named(tmp_path):
    draw_classes(tmp_path, ["a", "b"])
    (tmp_path / "train" / "b" / "bad.jpg").write_bytes(b"no picture")

    with pytest.raises(DataError, match=r"bad\.jpg must be a readable image"):
        load("image_folder", tmp_path)


def test_a_photo_of_more_pixels_than_pillow_opens_is_named(tmp_path, monkeypatch):
    draw_classes(tmp_path, ["a"])
    draw(tmp_path / "train" / "a" / "huge.png", RED, size=(50, 50))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # it refuses twice as many

    with pytest.raises(DataError, match=r"huge\.png must be a readable image, got: .*2500 pixels"):
        load("image_folder", tmp_path)


def test_photos_of_16_bits_are_refused_instead_of_turning_white(tmp_path):
    draw_classes(tmp_path, ["a"])
    Image.fromarray(np.full((8, 8), 3000, np.uint16)).save(tmp_path / "train" / "a" / "deep.png")

    with pytest.raises(DataError, match=r"deep\.png must have 8 bits per channel, got mode I;16"):
        load("image_folder", tmp_path)


def test_a_test_class_without_training_photos_is_refused(tmp_path):
    draw_classes(tmp_path, ["a", "b"])
    draw(tmp_path / "test" / "stranger" / "a.png", RED)

    with pytest.raises(DataError, match="stranger"):
        load("image_folder", tmp_path)


def test_an_empty_class_folder_is_refused(tmp_path):
    draw_classes(tmp_path, ["a", "b"])
    (tmp_path / "train" / "empty").mkdir()

    with pytest.raises(DataError, match="must hold photos, got none"):
        load("image_folder", tmp_path)


@pytest.mark.parametrize("size", [0, 5000])
def test_an_impossible_size_is_refused(size):
    with pytest.raises(SettingError, match=r"size must be in \[8, 1024\]"):
        DATASETS.get("image_folder")(size=size)


def clothing_lists(root, folder):
    """Three noisy training photos, one clean training photo, one clean test photo."""
    for name, colour in (("n1", RED), ("n2", GREEN), ("n3", BLUE), ("c1", RED), ("c2", GREEN)):
        draw(root / "images" / "0" / f"{name}.png", colour)
    folder.mkdir(exist_ok=True)
    key = "images/0/{}.png".format
    files = {
        "noisy_train_key_list.txt": [key("n2"), key("n1"), key("n3")],
        "noisy_label_kv.txt": [f"{key('n1')} 4", f"{key('n2')} 13", f"{key('n3')} 0"],
        "clean_train_key_list.txt": [key("c1")],
        "clean_test_key_list.txt": [key("c2")],
        "clean_label_kv.txt": [f"{key('c1')} 2", f"{key('c2')} 9", f"{key('n1')} 5"],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("folder", [".", "annotations"])
def test_clothing1m_key_lists_decide_order_and_labels(folder, tmp_path):
    clothing_lists(tmp_path, tmp_path / folder)

    arrays = load("clothing1m", tmp_path)

    assert arrays.class_names == CLOTHING1M_NAMES
    assert len(arrays.class_names) == 14
    assert arrays.train_labels.tolist() == [13, 4, 0]
    assert arrays.test_labels.tolist() == [9]
    np.testing.assert_array_equal(arrays.train_images[0, 0, 0], GREEN)


def test_clothing1m_can_train_on_its_clean_photos(tmp_path):
    clothing_lists(tmp_path, tmp_path)

    assert load("clothing1m", tmp_path, train_split="clean").train_labels.tolist() == [2]


def test_clothing1m_lists_are_among_the_sources(tmp_path):
    clothing_lists(tmp_path, tmp_path)

    names = {path.name for path in DATASETS.get("clothing1m")().sources(tmp_path)}

    assert {"noisy_label_kv.txt", "clean_test_key_list.txt", "n1.png", "c2.png"} <= names
    assert "c1.png" not in names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("images/0/n1.png 4", r"2 are missing, first 'images/0/n2\.png'"),
        ("images/0/n1.png", "must have lines `<key> <class number>`, got 'images/0/n1.png'; use"),
        ("images/0/n1.png four", "must have lines `<key> <class number>`, got"),
    ],
)
def test_a_clothing1m_list_without_a_label_is_named(tmp_path, text, says):
    clothing_lists(tmp_path, tmp_path)
    (tmp_path / "noisy_label_kv.txt").write_text(f"{text}\n")

    with pytest.raises(DataError, match=rf"noisy_label_kv\.txt .*{says}"):
        load("clothing1m", tmp_path)


def test_a_missing_clothing1m_list_is_named(tmp_path):
    clothing_lists(tmp_path, tmp_path)
    (tmp_path / "clean_label_kv.txt").unlink()

    with pytest.raises(DataError, match=r"clean_label_kv\.txt"):
        load("clothing1m", tmp_path)


def test_clothing1m_folders_must_be_fourteen(tmp_path):
    draw_classes(tmp_path, [f"{n:02}" for n in range(13)])
    with pytest.raises(DataError, match="14 class folders, got 13"):
        load("clothing1m", tmp_path)

    draw_classes(tmp_path, ["13"])
    assert len(load("clothing1m", tmp_path).class_names) == 14


def test_mini_webvision_takes_the_first_fifty_folders(tmp_path):
    draw_classes(tmp_path, [str(n) for n in range(52)], test="val")

    arrays = load("mini_webvision", tmp_path)

    assert arrays.class_names == tuple(str(n) for n in range(50))  # 2 before 10
    assert arrays.train_labels.tolist() == arrays.test_labels.tolist() == list(range(50))
    assert arrays.train_images[:, 0, 0, 0].tolist() == list(range(50))


def test_mini_webvision_with_too_few_folders_is_refused(tmp_path):
    draw_classes(tmp_path, ["n01440764", "n01443537", "n01484850"], test="val")

    with pytest.raises(DataError, match="at least 50 class folders, got 3"):
        load("mini_webvision", tmp_path)
    assert load("mini_webvision", tmp_path, classes=2).class_names == ("n01440764", "n01443537")
