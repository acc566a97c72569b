"""The kill harness: SIGKILL at each passage of each named point, on both stores; a successor; an audit of it all."""
