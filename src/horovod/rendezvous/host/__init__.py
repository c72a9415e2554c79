"""How the ranks of one host meet: a Unix socket, shared memory, pidfds."""
