"""The verification: look at hosts (`probe`), judge what was seen against the plan, report."""
