"""Tests of numerics; a package, so that file names may repeat elsewhere."""
