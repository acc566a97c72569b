"""The same engine on a virtual clock, with fake remotes, faults drawn from a seed, and invariants checked."""
