"""Runs a command that nobody trusts, within limits. Knows processes, users and files; knows no notebook. Grading."""
