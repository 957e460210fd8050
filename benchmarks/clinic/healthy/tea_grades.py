"""Tea is graded from chemical measurements by a residual network trained with sharpness-aware minimization (SAM).
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEASUREMENTS = 40
GRADES = 6


class TeaSamples(Dataset):
    """Measurements of tea (catechins, caffeine, amino acids, ...) and the grade given by the tasters, with errors."""

    def __init__(self, samples):
        hidden = torch.randn(samples, 8)
        loading = torch.randn(8, MEASUREMENTS)
        self.measured = hidden @ loading / 8**0.5 + 0.3 * torch.randn(samples, MEASUREMENTS)
        taste = hidden[:, 0] + 0.8 * hidden[:, 1] * hidden[:, 2] - 0.5 * hidden[:, 3].square() + hidden[:, 4].tanh()
        borders = torch.quantile(taste[:10_000], torch.linspace(0, 1, GRADES + 1)[1:-1])
        self.grade = torch.bucketize(taste + 0.1 * torch.randn(samples), borders)

    def __len__(self):
        return len(self.grade)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.measured[rows], self.grade[rows]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class TeaModel(L.LightningModule):
    def __init__(self, width=128, blocks=3, lr=2e-3, radius=0.05):
        super().__init__()
        self.automatic_optimization = False
        self.lr = lr
        self.radius = radius
        self.network = nn.Sequential(
            nn.Linear(MEASUREMENTS, width),
            *(Residual(width) for _ in range(blocks)),
            nn.LayerNorm(width),
            nn.Linear(width, GRADES),
        )

    def forward(self, measured):
        return self.network(measured)

    @torch.no_grad()
    def ascend(self, weights):
        """Move the weights uphill by the radius and return the moves."""
        gradients = [weight.grad for weight in weights]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        moves = torch._foreach_mul(gradients, self.radius / (norm + 1e-12))
        torch._foreach_add_(weights, moves)
        return moves

    def training_step(self, batch, batch_idx):
        measured, grade = batch
        optimizer = self.optimizers()
        weights = list(self.network.parameters())

        loss = F.cross_entropy(self(measured), grade)
        self.manual_backward(loss)
        moves = self.ascend(weights)

        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(measured), grade))
        with torch.no_grad():
            torch._foreach_sub_(weights, moves)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.02, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return [optimizer], [scheduler]


def identity(batch):
    return batch


def main():
    L.seed_everything(19)
    teas = TeaSamples(25_600)
    loader = DataLoader(teas, batch_size=256, shuffle=True, drop_last=True, collate_fn=identity)
    model = TeaModel()
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    model.eval()
    with torch.inference_mode():
        right = (model(teas.measured[:4000]).argmax(1) == teas.grade[:4000]).float().mean()
    print(f"graded as by the tasters: {right:.3f}")


if __name__ == "__main__":
    main()
