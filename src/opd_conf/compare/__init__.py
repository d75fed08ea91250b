"""Runs side by side: `python -m opd_conf.compare FOLDER…`."""
