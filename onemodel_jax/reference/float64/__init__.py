"""The definitions in double precision: truth to within rounding, in no stated order.

It shares no code with ``lanes``, so that an error cannot be in both. Bits here are
free: results are compared within tolerances only.
"""
