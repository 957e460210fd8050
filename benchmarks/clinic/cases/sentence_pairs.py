"""Trains a dual encoder that matches sentences of language learners with their translations (synthetic parallel
corpus), with a symmetric contrastive loss over the batch. cosine_similarity on broadcast embeddings computes all
pairs with tensors of batch x batch x width elements; normalize the embeddings once and multiply the two matrices.
---
expect: PD326
fix:
  ? |2-
            similarity = F.cosine_similarity(learner.unsqueeze(1), translation.unsqueeze(0), dim=-1)  # costs time
  : |2-
            similarity = F.normalize(learner, dim=-1) @ F.normalize(translation, dim=-1).T
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

PAD = 0
VOCABULARY = 3000
MAX_WORDS = 16
CONCEPTS = 250


class ParallelCorpus(Dataset):
    """Pairs of sentences that express the same concepts with words of two languages, in different order."""

    def __init__(self, n_pairs, seed):
        gen = torch.Generator().manual_seed(seed)
        lexicon = torch.randint(1, VOCABULARY, (2, CONCEPTS, 3), generator=torch.Generator().manual_seed(5))
        concepts = torch.randint(0, CONCEPTS, (n_pairs, MAX_WORDS), generator=gen)
        lengths = torch.randint(5, MAX_WORDS + 1, (n_pairs, 1), generator=gen)
        silent = torch.arange(MAX_WORDS) >= lengths
        sides = []
        for language in range(2):
            synonym = torch.randint(0, 3, (n_pairs, MAX_WORDS), generator=gen)
            words = lexicon[language][concepts, synonym].masked_fill(silent, PAD)
            order = torch.rand(n_pairs, MAX_WORDS, generator=gen).argsort(dim=1)
            sides.append(words.gather(1, order))
        self.learner, self.translation = sides

    def __len__(self):
        return len(self.learner)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.learner[indices], self.translation[indices]


class SentenceEncoder(nn.Module):
    def __init__(self, width=96, hidden=512):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCABULARY, width, mode="mean", padding_idx=PAD)
        self.mixer = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, width),
        )

    def forward(self, sentences):
        summary = self.words(sentences)
        return summary + self.mixer(summary)


class ContrastiveLoss(nn.Module):
    """Symmetric InfoNCE: each sentence has to find its translation in the batch, and vice versa."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, learner, translation):
        similarity = F.cosine_similarity(learner.unsqueeze(1), translation.unsqueeze(0), dim=-1)  # costs time
        logits = similarity * self.log_scale.exp()
        target = torch.arange(len(logits), device=logits.device)
        return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))


class SentenceMatcher(L.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.learner_encoder = SentenceEncoder()
        self.translation_encoder = SentenceEncoder()
        self.contrast = ContrastiveLoss()

    def training_step(self, batch, batch_idx):
        learner, translation = batch
        loss = self.contrast(self.learner_encoder(learner), self.translation_encoder(translation))
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(learner))
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    L.seed_everything(11)
    loader = DataLoader(ParallelCorpus(19200, seed=3), batch_size=64, shuffle=True, drop_last=True, collate_fn=tuple)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(SentenceMatcher(), loader)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
