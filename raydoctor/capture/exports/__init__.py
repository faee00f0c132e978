"""Exports of log stores and shippers: which stream each record belongs to, and the streams as files."""
