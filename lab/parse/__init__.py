"""Texts from nodes to records. Pure; ParseError quotes the text."""
