"""A job of fixed size, and what all jobs have: loop, folder, id, outcome, report."""
