"""Schedulers run on a clock instead of a model. Chapter 12."""
