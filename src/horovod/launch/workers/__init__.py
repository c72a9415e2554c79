"""The workers of this host: started, watched, ended; their output."""
