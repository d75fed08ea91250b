"""On-policy distillation with verl: compose, check, record, launch and follow one run."""

__version__ = "0.1.0"
