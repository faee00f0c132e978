"""Tests without clusters and without captured fixtures."""
