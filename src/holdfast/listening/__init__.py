"""Common parts of all listeners: which connections they hold, how long they wait for a client, and how they accept."""
