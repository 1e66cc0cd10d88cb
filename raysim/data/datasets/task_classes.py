"""The published task definitions: which classes form a task (RCC-PFL Table I, FB-NLL Table III)."""

from __future__ import annotations

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
