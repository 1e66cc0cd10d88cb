"""Classes of the published sets: their names, by label number, and which form a task.

Tasks are those of RCC-PFL Table I and FB-NLL Table III (raysim/docs/sheets/partitions.md).
"""

from __future__ import annotations

_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_CIFAR100_SUPERCLASSES = """
    beaver dolphin otter seal whale
    aquarium_fish flatfish ray shark trout
    orchid poppy rose sunflower tulip
    bottle bowl can cup plate
    apple mushroom orange pear sweet_pepper
    clock keyboard lamp telephone television
    bed chair couch table wardrobe
    bee beetle butterfly caterpillar cockroach
    bear leopard lion tiger wolf
    bridge castle house road skyscraper
    cloud forest mountain plain sea
    camel cattle chimpanzee elephant kangaroo
    fox porcupine possum raccoon skunk
    crab lobster snail spider worm
    baby boy girl man woman
    crocodile dinosaur lizard snake turtle
    hamster mouse rabbit shrew squirrel
    maple_tree oak_tree palm_tree pine_tree willow_tree
    bicycle bus motorcycle pickup_truck train
    lawn_mower rocket streetcar tank tractor
"""
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_CLOTHING1M = (
    "T-Shirt,Shirt,Knitwear,Chiffon,Sweater,Hoodie,Windbreaker,Jacket,Downcoat,Suit,Shawl,Dress,"
    "Vest,Underwear"
)

DIGIT_NAMES = tuple(str(digit) for digit in range(10))
FASHION_NAMES = tuple(_FASHION.split(","))
CIFAR10_NAMES = tuple(_CIFAR10.split())
CIFAR100_NAMES = tuple(_CIFAR100.split())
CLOTHING1M_NAMES = tuple(_CLOTHING1M.split(","))
CIFAR100_SUPERCLASSES = tuple(
    tuple(CIFAR100_NAMES.index(name) for name in line.split())
    for line in _CIFAR100_SUPERCLASSES.strip().splitlines()
)
"""Label numbers of the five classes of each of the twenty superclasses."""

Tasks = tuple[tuple[int, ...], ...]

DIGIT_TASKS: dict[int, Tasks] = {  # MNIST and SVHN in the papers; digits (8x8) is ours
    2: ((0, 2, 4, 6, 8), (1, 3, 5, 7, 9)),
    3: ((0, 2, 4), (6, 8, 1), (3, 5, 7, 9)),
    5: ((0, 2), (4, 6), (8, 1), (3, 5), (7, 9)),
}
FASHION_TASKS: dict[int, Tasks] = {
    2: ((0, 1, 2, 3, 4, 6), (5, 7, 8, 9)),
    3: ((0, 1, 2), (3, 4, 6), (5, 7, 8, 9)),
    5: ((0, 1), (2, 3), (4, 6), (5, 7), (8, 9)),
}
CIFAR10_TASKS: dict[int, Tasks] = {
    2: ((0, 1, 8, 9), (2, 3, 4, 5, 6, 7)),
    3: ((0, 1, 8), (9, 2, 3), (4, 5, 6, 7)),
    5: ((0, 1), (8, 9), (2, 3), (4, 5), (6, 7)),
}
