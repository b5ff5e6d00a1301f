"""Tests of the operations and their VJPs."""
