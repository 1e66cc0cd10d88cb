"""RCC-PFL (Ali and Arafa, ICC 2025): Tables II and III, and Figure 3.

Test accuracy in per cent, mean and standard deviation of five runs; the columns are M = 2, 3, 5.
"""

from __future__ import annotations

from raysim.studies.reproduce.published import GROUPS
from raysim.studies.reproduce.tables import Paper, Target, printed_grid

METHODS = ("optimum", "rcc_pfl", "ifca_pfl", "single")

TABLE2 = """
mnist         optimum          94.3 ±0.6     96.2 ±0.5     97.3 ±0.3
mnist         rcc_pfl          94.4 ±0.5     96.2 ±0.5     97.3 ±0.2
mnist         ifca_pfl         87.9 ±1.9     91.4 ±3.3     93.3 ±4.7
mnist         single           87.8 ±1.0     86.9 ±1.4     84.9 ±2.3
fashion_mnist optimum          87.0 ±0.3     92.0 ±0.3     95.6 ±0.2
fashion_mnist rcc_pfl          87.0 ±0.3     92.0 ±0.3     95.6 ±0.3
fashion_mnist ifca_pfl         83.9 ±2.1     90.4 ±2.3     92.5 ±3.6
fashion_mnist single           83.9 ±0.8     79.7 ±1.5     79.2 ±1.7
cifar10       optimum          64.0 ±0.6     75.4 ±1.0     85.8 ±1.4
cifar10       rcc_pfl          63.9 ±0.8     75.5 ±1.0     85.8 ±1.3
cifar10       ifca_pfl         45.3 ±4.4     56.0 ±12.7    72.7 ±15.5
cifar10       single           46.7 ±2.4     40.5 ±3.7     37.2 ±10.4
"""
TABLE3 = """
mnist         optimum          89.1 ±3.6     90.1 ±4.1     96.4 ±1.6
mnist         rcc_pfl          89.2 ±3.5     90.0 ±4.2     96.4 ±1.6
mnist         ifca_pfl         84.9 ±5.8     75.4 ±10.8    88.2 ±9.5
mnist         single           81.0 ±4.4     78.9 ±3.5     82.0 ±4.4
fashion_mnist optimum          83.3 ±1.3     86.2 ±6.4     94.2 ±2.2
fashion_mnist rcc_pfl          83.2 ±1.3     86.1 ±6.5     94.1 ±2.4
fashion_mnist ifca_pfl         79.1 ±5.2     72.1 ±6.6     88.0 ±8.1
fashion_mnist single           81.6 ±1.2     76.1 ±4.6     79.2 ±2.5
cifar10       optimum          57.8 ±2.2     69.5 ±2.9     86.9 ±1.2
cifar10       rcc_pfl          57.8 ±2.1     69.3 ±2.7     86.9 ±1.3
cifar10       ifca_pfl         42.4 ±5.1     44.6 ±6.8     60.3 ±16.2
cifar10       single           46.5 ±2.6     42.6 ±3.0    38.05 ±4.9
"""


def _table(number: int, words: str, noise: str, text: str) -> Target:
    return Target(
        f"rcc-pfl/table{number}",
        f"accuracy, {words}",
        "accuracy",
        noise,
        ("mnist", "fashion_mnist", "cifar10"),
        METHODS,
        printed=printed_grid(text, [f"m{groups}" for groups in GROUPS]),
    )


RCC_PFL = Paper(
    targets=(
        _table(2, "class-independent noise", "class_independent", TABLE2),
        _table(3, "class-dependent noise", "class_dependent", TABLE3),
        Target(
            "rcc-pfl/figure3",
            "test loss per task, class-independent noise",
            "loss",
            "class_independent",
            ("cifar10",),
            ("optimum", "rcc_pfl", "ifca_pfl"),
            (3,),
        ),
    ),
    seeds=5,
)
