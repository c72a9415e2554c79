"""Authentication, sockets and limits that all parts of the rendezvous use."""
