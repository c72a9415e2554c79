"""Which rank this process is, as its launcher says."""
