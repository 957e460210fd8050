"""Make the page reference/treatments.md from the treatments."""

from __future__ import annotations

from itertools import groupby

from lightning_perf.records import LoaderSettings, Machine, Run, Session, Settings, TrainerSettings
from lightning_perf.treatments.prescription import prescription
from lightning_perf.treatments.specs import all_treatments, parse, with_default
from lightning_perf.treatments.treatment import Treatment

# A training for the examples: 4 cores per rank, batches of 32, 4 batches per optimizer step.
EXAMPLE = Session(
    run=Run(id="", stage="fit", status="finished", started_at="", wall_s=1.0),
    machine=Machine(os="", python="", usable_cores=4.0),
    settings=Settings(
        trainer=TrainerSettings(accumulate_grad_batches=4),
        loaders=(LoaderSettings(stage="train", index=0, class_name="", is_plain=True, batch_size=32, num_workers=0),),
    ),
)

INTRODUCTION = """\
# Treatments

A treatment is one change to a training. Findings recommend treatments by their ids; you can also name them yourself:

    lightning-perf run --with precision-bf16,loader-workers=4 -- python train.py
    lightning-perf trial --try compile,fused-optimizer -- python train.py

or let PerfDoctor apply those marked *live* during the training, once a finding recommends them:
`PerfDoctor(apply=["loader-workers"])`. Those of loaders, and all with several ranks, are applied at the start of the
next epoch, others also between two steps. Everything that was applied is restored when the training ends.
[`PerfDoctor(autopilot="exact")`](../how-to/autopilot.md) tries them, and keeps only those that make the run faster.

Safety of a treatment:

- **exact**: the same results, bit for bit or up to the order of the data. Changing `num_workers` or
  `persistent_workers` changes when torch draws from its random generator. From the second epoch on, a loader that
  shuffles with a generator of its own, several loaders together, and persistent workers can yield another order, and
  dropout can use other masks.
- **numerics**: rounding changes.
- **semantics**: the training itself changes; only tried if you ask for it.

Loaders are rebuilt with the same dataset, sampler, batch sampler, collate function, generator and
`worker_init_fn`; only `dataset-cache` wraps the dataset. Refused, with the reason: subclasses of `DataLoader`
that fetch in a way of their own, and workers for an `IterableDataset` that does not divide its samples among them.
"""


def page() -> str:
    """Return the page."""
    treatments = sorted(all_treatments(), key=lambda one: (_category(one), one.id))
    lines = [INTRODUCTION, "| id | safety | effort | live | what it does |", "|---|---|---|---|---|"]
    for one in treatments:
        live = "live" if one.is_live else ""
        lines.append(f"| [{one.id}](#{one.id}) | {one.safety} | {one.effort} | {live} | {_capital(one.summary)} |")
    for category, members in groupby(treatments, key=_category):
        lines += ["", f"## {category}"]
        for one in members:
            lines += ["", *_entry(one)]
    return "\n".join(lines) + "\n"


def _entry(one: Treatment) -> list[str]:
    written = prescription([with_default(parse(one.id), EXAMPLE)], EXAMPLE)
    where = "in the step" if one.acts_on == "step" else "over whole epochs"
    lines = [f"### {one.id}", "", f"{_capital(one.summary)}.", "", f"When to use: {one.when}", ""]
    lines.append(f"- safety: {one.safety}; effort: {one.effort}; its effect shows {where}")
    if one.is_measurement:
        lines.append(f"- a measurement, only for `lightning-perf trial --try {one.id}`: never combined or kept")
    if one.value_form:
        lines.append(f"- value: `{one.id}=…` with {one.value_form}")
    others = sorted({other.id for other in all_treatments() if one.id in other.conflicts} | one.conflicts)
    if others:
        lines.append(f"- not together with {', '.join(others)}")
    if written.code:
        lines += ["", "```python", written.code, "```"]
    return lines


def _category(one: Treatment) -> str:
    return type(one).__module__.split(".")[-1]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
