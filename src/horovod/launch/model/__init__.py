"""What a job is: hosts, plans, limits. Values and pure functions."""
