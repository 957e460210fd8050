"""Gradients that live in DDP's buckets."""

from __future__ import annotations

from lightning_perf.treatments.ddp import DdpTreatment


class DdpBucketView(DdpTreatment):
    id = "ddp-bucket-view"
    summary = "lets gradients live in the buckets that DDP exchanges: one copy and its memory less"
    when = "With DDP, unless something keeps or detaches `parameter.grad` by hand."
    argument = "gradient_as_bucket_view"


TREATMENT = DdpBucketView()
