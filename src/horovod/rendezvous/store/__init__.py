"""The key-value store of a job: client, server and their messages."""
