"""Shared by several rules: signals, joins, sentences, remedies and examples."""
