"""What ``tools/bench`` runs: one module per subcommand, and the references it measures against.

``plain_loop``, ``bare_ray``, ``similarity_loop`` and ``gemm`` are the references. They are fixed:
a change there changes every published ratio. Each side of a comparison is a process of its own
(``sides``), the sides take turns in one run, and memory is the PSS of a side's process tree.
"""
