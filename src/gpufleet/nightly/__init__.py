"""Everything that is about many hosts or many nights. `verify` looks at them and judges."""
