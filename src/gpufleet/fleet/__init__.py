"""The verification: probe hosts, judge their snapshots against the plan, report."""
