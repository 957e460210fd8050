"""PD329: each epoch computes again what depends on a dataset's items and on no parameter that is trained."""

from lightning_perf.records import Finding, LoaderSettings, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.known_result_signals import Repeated, known_result_rule
from lightning_perf.rules.loader_signals import are_all_kept, n_epochs_of
from lightning_perf.rules.signals import loaders_of
from lightning_perf.rules.thresholds import KEPT_MAX_MEMORY, KEPT_MIN_EPOCHS
from lightning_perf.rules.wording import number_of, percent, size_text


@known_result_rule("PD329", "frozen-repeated", "frozen")
def check(repeated: Repeated) -> Finding | None:
    session = repeated.session
    loader, probe = loaders_of(session)[0], session.loader_probe
    n_epochs = n_epochs_of(session, loader)
    if n_epochs < KEPT_MIN_EPOCHS or (probe is not None and probe.may_keep is False):
        return None
    found, all_bytes = repeated.found, _all_bytes(session, loader, repeated)
    is_same = bool(loader.is_in_memory_tensors or (probe is not None and probe.may_keep)) and _is_plain(session, loader)
    host = session.memory.host
    memory_bytes = host.limit_bytes or 0 if host is not None else 0
    has_room = all_bytes is not None and all_bytes <= KEPT_MAX_MEMORY * memory_bytes
    is_sure = is_same and has_room and found.is_per_item
    condition = "" if is_same else ", if the dataset's items do not change"
    return repeated.saving_finding(
        summary=(
            f"{repeated.where} computes the same for an item in each epoch{condition}: "
            f"{percent(found.forward_part)} of forward depends on the batch, but on no parameter that is trained."
        ),
        counted="operators that depend on no trained parameter",
        more=(fact("memory for their results of the whole dataset", all_bytes, "bytes"),),
        prescriptions=fix(
            "compute it once for each item and train on the kept results"
            + (f" ({size_text(all_bytes)})" if all_bytes is not None else ""),
            "minutes",
            code=(
                "with torch.inference_mode():\n"
                "    features = torch.cat([backbone(x) for x, _ in DataLoader(dataset, batch_size=256)])\n"
                "dataset = TensorDataset(features.clone(), labels)"
            ),
        ),
        least_s=(1 - 1 / n_epochs) * repeated.least_s if is_sure else 0.0,
        basis=f"operators of one step, timed and followed; the lower end is of {number_of(n_epochs, 'epoch')}",
        confidence="high" if is_sure else "low",
    )


def _is_plain(session: Session, loader: LoaderSettings) -> bool:
    """Return whether one process gets each item in each epoch, as the dataset returns it."""
    return loader.collate in (None, "default_collate") and are_all_kept(session, loader)


def _all_bytes(session: Session, loader: LoaderSettings, repeated: Repeated) -> float | None:
    """Return the bytes of the results for all items; None if the size of the batch or of the dataset is unknown."""
    profile = session.model_profile
    n = profile.n_samples if profile is not None else None
    return repeated.found.kept_bytes / n * loader.n_samples if n and loader.n_samples else None
