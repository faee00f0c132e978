"""Consoles as people save and paste them, rewritten to the forms that Ray itself prints."""
