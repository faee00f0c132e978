"""Tests on real Ray clusters, and on other real processes and users."""
