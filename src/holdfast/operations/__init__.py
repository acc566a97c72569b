"""Verbs that anyone may ask for; each is one transaction: state, job, audit and event together."""
