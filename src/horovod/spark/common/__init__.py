"""What the estimators of all frameworks share; see docs/estimators.md."""
