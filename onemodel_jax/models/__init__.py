"""Complete models: a configuration, an initializer and a forward function each."""
