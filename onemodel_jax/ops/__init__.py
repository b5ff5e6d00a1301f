"""Differentiable operations with hand-written VJPs."""
