"""The command line of ``horovodrun``."""
