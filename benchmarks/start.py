"""How long a check takes, next to a bare Hydra application that composes verl's flattened file and does nothing.

    python benchmarks/start.py [RUNS]

Whole processes, in turn; the median of each and of the ratio of each pair. Both compose about 900 keys; ours also picks
groups, checks everything and prints the estimate of memory.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from opd_conf import verl_tree

BARE = """\
import hydra
@hydra.main(config_path={folder!r}, config_name={name!r}, version_base="1.3")
def main(config): pass
main()
"""
QUIET = ("hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none")
OURS = ("-m", "opd_conf", "platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "action=check")


def seconds(command: list[str], folder: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main(runs: int) -> None:
    flattened = verl_tree.file_of("ppo_trainer")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "bare.py").write_text(BARE.format(folder=str(flattened.parent), name=flattened.stem))
        bare, ours = [sys.executable, "bare.py", *QUIET], [sys.executable, *OURS]
        seconds(bare, folder), seconds(ours, folder)  # files read once
        pairs = [(seconds(ours, folder), seconds(bare, folder)) for _ in range(runs)]
    print(f"opd_conf action=check  {statistics.median(pair[0] for pair in pairs):.3f} s")
    print(f"bare Hydra             {statistics.median(pair[1] for pair in pairs):.3f} s")
    print(f"ratio                  {statistics.median(ours / bare for ours, bare in pairs):.2f}   ({runs} pairs)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
