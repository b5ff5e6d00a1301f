"""The ``onemodel`` command, one file a subcommand."""
