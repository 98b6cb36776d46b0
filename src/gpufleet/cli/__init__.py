"""The command line: a module per verb, each with `parser()` and `run(options, rest) -> status`."""
