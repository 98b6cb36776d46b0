"""From a plan and a snapshot to verdicts: runs the checks, bounds and folds their findings."""
