"""Learns how wines age (a score per bottle from chemistry, storage and years) with a Gaussian process, whose length
scales, signal and noise are fitted by the marginal likelihood of random groups of 640 bottles per step.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES = 14


def taste(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores that rise and fall with the years, the sooner the less acid and tannin a wine has."""
    bottles = torch.randn(count, FEATURES)
    years = bottles[:, 0] + 1.5
    peak = 1.5 + 0.8 * bottles[:, 1] + 0.6 * torch.tanh(bottles[:, 2])
    scores = torch.exp(-0.5 * (years - peak) ** 2) + 0.4 * torch.sin(2 * bottles[:, 3]) + 0.1 * bottles[:, 4]
    scores = scores + 0.15 * torch.randn(count)
    return bottles, (scores - scores.mean()) / scores.std()


class NegativeLogEvidence(torch.autograd.Function):
    """Evidence of a Gaussian process per bottle, with the gradient for the covariance in closed form."""

    @staticmethod
    def forward(ctx, covariance: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        factor, _ = torch.linalg.cholesky_ex(covariance)
        inverse = torch.cholesky_inverse(factor)
        weights = inverse @ scores
        slope = inverse.addr_(weights, weights, alpha=-1).mul_(0.5 / len(scores))
        ctx.save_for_backward(slope)
        return (0.5 * scores @ weights + factor.diagonal().log().sum()) / len(scores)

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        (slope,) = ctx.saved_tensors
        return slope * grad, None


class WineProcess(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((FEATURES,), 1.0))
        self.log_signal = nn.Parameter(torch.tensor(0.0))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def covariance(self, bottles: torch.Tensor) -> torch.Tensor:
        scaled = bottles * torch.exp(-self.log_scale)
        squares = scaled.pow(2).sum(1)
        exponent = torch.addmm(squares.unsqueeze(1) + squares, scaled, scaled.T, alpha=-2).clamp_(min=0)
        kernel = torch.exp(2 * self.log_signal - 0.5 * exponent)
        return kernel + torch.diag((2 * self.log_noise).exp().expand(len(bottles)) + 1e-4)

    def training_step(self, batch, batch_idx):
        bottles, scores = batch
        loss = NegativeLogEvidence.apply(self.covariance(bottles), scores)
        self.log("train_evidence", -loss.detach(), on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-2, fused=True)


def main():
    L.seed_everything(5)
    bottles, scores = taste(12_800)
    loader = DataLoader(TensorDataset(bottles, scores), batch_size=640, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=28, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    model = WineProcess()
    trainer.fit(model, loader)
    scales = [round(scale, 2) for scale in model.log_scale.exp().tolist()]
    print(trainer.callback_metrics["train_evidence"].item(), scales)


if __name__ == "__main__":
    main()
