"""onemodel_jax: training in JAX whose every bit is defined."""
