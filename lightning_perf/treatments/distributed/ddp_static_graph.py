"""DDP told that every step is alike."""

from __future__ import annotations

from lightning_perf.treatments.ddp import DdpTreatment


class DdpStaticGraph(DdpTreatment):
    id = "ddp-static-graph"
    summary = "tells DDP that every step uses the same parameters, so that it need not look for unused ones"
    when = "Where the graph of the loss is the same at every step. Where it is not, DDP stops with an error."
    argument = "static_graph"


TREATMENT = DdpStaticGraph()
