"""What the treatments of the training loader share."""

from __future__ import annotations

from lightning_perf.records import LoaderSettings, Session

from .treatment import Treatment


class LoaderTreatment(Treatment):
    """A change of ``DataLoader`` arguments; the Applier makes the loaders anew, once for all such treatments."""

    is_live = True

    def applies_to(self, session: Session) -> str | None:
        loaders = train_loaders(session)
        if not loaders:
            return "the training loader was not seen"
        for loader in loaders:
            if not loader.is_plain:
                return f"the training loader is a {loader.class_name}, not exactly a torch.utils.data.DataLoader"
            if loader.is_iterable:
                return "the dataset is an IterableDataset, of which each worker would yield everything"
        return self.applies_to_loader(loaders[0], session)

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        """The same for the first of plain loaders."""
        return None


def train_loaders(session: Session) -> tuple[LoaderSettings, ...]:
    """The training loaders that a session saw."""
    return tuple(loader for loader in session.settings.loaders if loader.stage == "train")
