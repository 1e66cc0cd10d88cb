"""``raysim reproduce``: every table and figure of the papers as runs, beside what is printed.

``papers`` reads the tables from ``papers/*.yaml``, ``configs`` makes the config of a cell, ``plan``
the cells that are missing, ``measure`` is the work of one of them, ``results`` reads and compares,
``summary`` writes it up. ``similarity`` and ``passes`` are what is measured without training.
"""
