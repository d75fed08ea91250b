"""What planning a cell of a sweep costs: 1,000 cells with opd_conf's sweeper, 50 with Hydra's own.

    python benchmarks/plan.py

Hydra's BasicSweeper composes each cell to validate it and once more to start it; ours once, and checks it.
"""

import resource
import sys
import time

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from opd_conf.compose import conf_folder
from opd_conf.sweep.composer import Composer
from opd_conf.sweep.plan import cells_of, planned

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "checks.ignore=[data_files]")


def combinations(number: int) -> list[list[str]]:
    losses, rates = ("k1", "forward_kl_topk"), ("1e-6", "2e-6", "5e-6", "1e-5")
    every = [
        [*RUN, f"loss_mode={loss}", f"actor_rollout_ref.actor.optim.lr={rate}", f"topk={topk}"]
        for topk in range(1, 1 + number // 8)
        for loss in losses
        for rate in rates
    ]
    return every[:number]


def megabytes() -> float:
    """The largest so far of this process and of one child."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def main() -> None:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("opd", [], RunMode.MULTIRUN)
        list(planned(cells_of(combinations(40)), Composer(loader, master)))
        before = megabytes()
        begun = time.perf_counter()
        cells = list(planned(cells_of(combinations(1000)), Composer(loader, master)))
        ours = (time.perf_counter() - begun) / len(cells)
        grown = (megabytes() - before) / len(cells)
        fifty = combinations(56)[:50]
        begun = time.perf_counter()
        for _ in range(2):  # validated, then started
            for overrides in fifty:
                loader.load_sweep_config(master, overrides)
        basic = (time.perf_counter() - begun) / len(fifty)
    print(f"opd_conf       {1000 * ours:.0f} ms a cell, {grown:.3f} MB a cell ({len(cells)} cells, checks included)")
    print(f"BasicSweeper   {1000 * basic:.0f} ms a cell ({len(fifty)} cells, no checks)")
    print(f"ratio          {basic / ours:.0f}")


if __name__ == "__main__":
    sys.exit(main())
