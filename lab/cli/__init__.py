"""The command line: one small module per group of verbs; argv and environment end here."""
