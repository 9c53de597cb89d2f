"""Where nodes come from. ``PROVIDERS`` in :mod:`lab.providers.registry` names them all."""
