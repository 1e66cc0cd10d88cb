"""``raysim reproduce``: every table and figure of the papers as runs, beside what is printed.

``published`` and ``papers`` hold the papers' numbers, ``recipes`` says which runs a table is made
of, ``runner`` runs them (one process each, ``worker``), ``results`` reads and compares,
``summary`` writes it up. ``passes`` is the one table that is counted, not trained.
"""
