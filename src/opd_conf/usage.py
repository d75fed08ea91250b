"""`--help`: the usage lines, and every group of conf/ with its options, read from the files themselves."""

from pathlib import Path

USAGE = """\
python -m opd_conf platform=npu student=qwen3_5_2b teacher=qwen3_5_35b_a3b
python -m opd_conf experiment=smoke                                    a tiny one, on this machine's CPU
python -m opd_conf … action=check                                      or dry_run, script; default: train
python -m opd_conf … actor_rollout_ref.actor.optim.lr=2e-6             any key of verl
python -m opd_conf -m loss_mode=k1,forward_kl_topk topk=16,64 …        a sweep
python -m opd_conf … --cfg job                                         print the composed configuration
python -m opd_conf --hydra-help                                        Hydra's other flags"""


def usage(conf: Path) -> str:
    """The text of `--help` for this configuration folder."""
    groups = sorted(folder for folder in conf.iterdir() if folder.is_dir() and folder.name != "local")
    return "\n".join([USAGE, "", *(line for group in groups for line in _group(group))])


def _group(folder: Path) -> list[str]:
    options = sorted(path for path in folder.glob("*.yaml") if not path.name.startswith("_"))
    return [f"{folder.name}=", *(f"  {path.stem:<32}{_purpose(path)}" for path in options), ""]


def _purpose(path: Path) -> str:
    """The first sentence of a file's comment."""
    lines = path.read_text().splitlines()
    comment = " ".join(
        line.removeprefix("# ") for line in lines if line.startswith("# ") and not line.startswith("# @")
    )
    return comment.split(". ")[0].rstrip(".") + "."
