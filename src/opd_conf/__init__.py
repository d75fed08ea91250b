"""On-policy distillation with verl: compose, check, record, launch and follow one run."""

from omegaconf import OmegaConf

__version__ = "0.1.0"


def _add(*terms: int) -> int:
    """`${add:a,b,…}` in a configuration: the sum of whole numbers, such as lengths of prompt and response."""
    return sum(terms)


OmegaConf.register_new_resolver("add", _add, replace=True)
