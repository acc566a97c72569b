"""FACE: what agents ask, over HTTPS: enrolment, identities, and one long poll."""
