"""What our configuration files compute beyond OmegaConf's own interpolations; importing this module makes it known."""

from omegaconf import OmegaConf


def add(*terms: int) -> int:
    """`${add:a,b,…}` in a configuration: the sum of whole numbers, such as lengths of prompt and response."""
    return sum(terms)


OmegaConf.register_new_resolver("add", add, replace=True)
