"""Shared by rules about live tables: joins, sentences, and tables for examples."""
