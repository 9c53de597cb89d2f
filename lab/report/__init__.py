"""Stored attempts to tables and pages. Pure."""
