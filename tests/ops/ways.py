"""The ways of running a function of one line over a batch of lines."""

import jax
import jax.numpy as jnp


def every_way(function, lines, shared):
    """Yield (way, results) of function(line, *shared) for each line, stacked.

    Args:
      function: takes one line (a tuple of arrays) and shared arrays.
      lines: tuple of arrays with a leading axis of lines.
      shared: tuple of arrays.
    """

    def loop(function, lines, shared):
        count = lines[0].shape[0]
        each = [function(tuple(x[i] for x in lines), *shared) for i in range(count)]
        return jax.tree_util.tree_map(lambda *x: jnp.stack(x), *each)

    def scan(lines, shared):
        step = lambda carry, line: (carry, function(line, *shared))  # noqa: E731
        return jax.lax.scan(step, 0, lines)[1]

    def vmap(lines, shared):
        return jax.vmap(lambda *line: function(line, *shared))(*lines)

    def together(lines, shared):
        return vmap(lines, shared), scan(lines, shared)

    yield "eager", loop(function, lines, shared)
    yield from zip(
        ("jit of vmap", "jit of scan"), jax.jit(together)(lines, shared), strict=True
    )
