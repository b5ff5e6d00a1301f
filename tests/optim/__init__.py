"""Tests of the optimizers and of clipping."""
