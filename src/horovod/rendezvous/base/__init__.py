"""Authentication, sockets and limits that every part of rendezvous uses."""
