"""Starts the processes of a job, watches them and ends them: everything behind ``horovodrun``."""
