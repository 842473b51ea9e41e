"""Answers that must have a form."""
