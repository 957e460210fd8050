"""No search for unused parameters in DDP."""

from __future__ import annotations

from lightning_perf.treatments.ddp import DdpTreatment


class DdpFindUnusedOff(DdpTreatment):
    id = "ddp-find-unused-off"
    summary = "stops DDP from walking the graph after every forward pass to find parameters that were not used"
    when = "Where every parameter takes part in every loss. Where one does not, DDP stops with an error."
    argument = "find_unused_parameters"
    wanted = False


TREATMENT = DdpFindUnusedOff()
