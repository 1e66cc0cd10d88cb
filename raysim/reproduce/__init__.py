"""``raysim reproduce``: every table and figure of the two papers as runs, beside what is printed.

``published`` holds the papers' numbers, ``recipes`` says which runs a table is made of, ``runner``
runs them (one process each, ``worker``), ``results`` reads and compares, ``summary`` writes it up.
"""
