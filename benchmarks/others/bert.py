"""A small BERT of Hugging Face in a LightningModule, after Lightning's tutorial on GLUE, on random tokens."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

CONFIG = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = BertForSequenceClassification(BertConfig(vocab_size=8000, **CONFIG))

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self.model(**batch)[0]
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.model(**batch)[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-5)
        schedule = get_linear_schedule_with_warmup(optimizer, 0, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Sentences(Dataset):  # type: ignore[type-arg]
    """Sentences of 16 to 119 tokens, padded to 128."""

    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        ids, n = torch.zeros(128, dtype=torch.long), int(torch.randint(16, 120, (), generator=generator))
        ids[:n] = torch.randint(5, 8000, (n,), generator=generator)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": index % 2}


lightning.Trainer().fit(Classifier(), DataLoader(Sentences(), 32, shuffle=True), DataLoader(Sentences(), 32))
