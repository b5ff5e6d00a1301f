"""Ordered NumPy: every rounding of the exact arithmetic, written the obvious way.

Nothing here is fast and nothing imports JAX or the library proper. Each function
states its order; SPEC.md states it normatively.
"""
