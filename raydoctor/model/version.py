"""The version of raydoctor, which captures, reports and other nodes carry."""

__version__ = "0.1.0"
