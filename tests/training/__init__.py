"""Tests of the training step."""
