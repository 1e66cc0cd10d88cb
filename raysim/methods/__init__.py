"""One file per paper; ``METHODS`` finds them all."""

from raysim.methods.method import METHODS, Method, one_group

__all__ = ["METHODS", "Method", "one_group"]
