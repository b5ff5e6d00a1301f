"""Independent references: what the library's results are checked against.

``lanes`` is slow, ordered NumPy that defines every bit; ``float64`` is the
definitions in double precision; both use NumPy and the standard library only and
share no code with the library or with each other. Nothing is re-exported here, so
importing one reference never imports another.
"""
