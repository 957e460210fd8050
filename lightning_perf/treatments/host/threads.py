"""How many threads torch computes with on the CPU."""

from __future__ import annotations

import re
from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.cores import whole_cores_per_rank
from lightning_perf.treatments.treatment import Treatment, Undo


class Threads(Treatment):
    id = "threads"
    safety = "numerics"
    summary = "sets the number of threads that torch computes with on the CPU"
    when = (
        "Where it uses fewer threads than there are cores, or where ranks and workers fight over them. Sums are split "
        "among threads, so rounding changes with their number."
    )
    is_live = True
    value_form = "N, threads a process, at least 1"

    def applies_to(self, session: Session) -> str | None:
        now, wanted = session.settings.torch.n_threads, self.default_value(session)
        return f"torch computes with {now} threads already" if now == wanted else None

    def parse_value(self, text: str | None) -> int | None:
        return self.whole(text, least=1)

    def default_value(self, session: Session | None) -> int:
        prescription = self.prescribed(session)
        wanted = re.search(r"set_num_threads\((\d+)\)", prescription.code) if prescription is not None else None
        return int(wanted[1]) if wanted else whole_cores_per_rank(session)

    def environment(self, value: Any) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(value)}

    def statements(self, value: Any) -> str:
        return f"torch.set_num_threads({value})"

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(value)
        return lambda: torch.set_num_threads(before)


TREATMENT = Threads()
