"""``python -m lab`` is the program ``lab``."""

from lab.cli.main import run

run()
