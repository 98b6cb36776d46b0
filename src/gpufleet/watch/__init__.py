"""The nightly run: verify all hosts, record the results, detect changes, notify people."""
