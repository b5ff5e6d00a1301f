"""The rational tape: graphs, sweeps and pullbacks checked without tolerance."""
