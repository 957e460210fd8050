"""An autoencoder over users' watched movies learns to recommend further ones and is validated by NDCG@20. The metric
object goes through the users one by one when it is computed.
---
expect: [PD601, PD509]
fix:
  ? "        self.ndcg = RetrievalNormalizedDCG(top_k=20)"
  : |2-
            self.register_buffer("discount", torch.log2(torch.arange(20) + 2.0).reciprocal())
  ? |2-
            index = user[:, None].expand_as(scores)
            self.ndcg.update(scores.flatten(), hidden.flatten(), index.flatten())
  : |2-
            gains = hidden.gather(1, scores.topk(20).indices) * self.discount
            ideal = self.discount.cumsum(0)[hidden.sum(dim=1).clamp(max=20) - 1]
            self.log("val_ndcg", (gains.sum(dim=1) / ideal).mean(), prog_bar=True)
  ? |2-
        def on_validation_epoch_end(self):
            self.log("val_ndcg", self.ndcg.compute(), prog_bar=True)  # costs time
            self.ndcg.reset()
  : ""
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.retrieval import RetrievalNormalizedDCG

MOVIES, FACTORS = 1200, 12


class MovieAutoencoder(L.LightningModule):
    def __init__(self, width=384, dropout=0.3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Dropout(dropout), nn.Linear(MOVIES, width), nn.Tanh())
        self.middle = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.decoder = nn.Linear(width, MOVIES)
        self.ndcg = RetrievalNormalizedDCG(top_k=20)

    def forward(self, watched):
        return self.decoder(self.middle(self.encoder(F.normalize(watched, dim=1))))

    def training_step(self, batch, batch_idx):
        (watched,) = batch
        loss = -(F.log_softmax(self(watched), dim=1) * watched).sum(dim=1).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        user, watched, hidden = batch
        scores = self(watched).masked_fill(watched > 0, -1e9)
        index = user[:, None].expand_as(scores)
        self.ndcg.update(scores.flatten(), hidden.flatten(), index.flatten())

    def on_validation_epoch_end(self):
        self.log("val_ndcg", self.ndcg.compute(), prog_bar=True)  # costs time
        self.ndcg.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def make_histories(users):
    """Which movies each user has watched, about 40 of them, after tastes with a few factors."""
    taste = torch.randn(users, FACTORS) @ torch.randn(FACTORS, MOVIES)
    chosen = (1.5 * taste + 4 * torch.randn(users, MOVIES)).topk(40, dim=1).indices
    return torch.zeros(users, MOVIES).scatter_(1, chosen, 1.0)


def hold_out(histories):
    """Splits every history: four fifths are shown, one fifth is to be ranked high."""
    keep = torch.rand_like(histories).masked_fill(histories == 0, -1.0)
    held = torch.zeros_like(histories).scatter_(1, keep.topk(8, dim=1).indices, 1.0)
    return TensorDataset(torch.arange(len(histories)), histories - held, held.long())


if __name__ == "__main__":
    L.seed_everything(21)
    histories = make_histories(5000)
    train = DataLoader(TensorDataset(histories[:4000]), batch_size=128, shuffle=True)
    val = DataLoader(hold_out(histories[4000:]), batch_size=250)
    trainer = L.Trainer(accelerator="cpu", max_epochs=7, logger=False, enable_checkpointing=False)
    trainer.fit(MovieAutoencoder(), train, val)
