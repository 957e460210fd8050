"""One convolutional trunk with four heads learns segmentation, depth, normals and edges of street scenes,
with learned task weights. Manual optimization calls backward once per task, each time through the whole
trunk.
---
expect: PD331
fix:
  ? |-
    for name, loss in losses.items():
                self.manual_backward(self.weighted(name, loss), retain_graph=True)  # costs time
  : |-
    self.manual_backward(sum(self.weighted(name, loss) for name, loss in losses.items()))
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 48
LABELS = 6


def render_scenes(count: int, seed: int):
    """Smooth random height maps: their bands are the labels, their gradients the normals and edges."""
    gen = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 1, 6, 6, generator=gen)
    height = F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic")
    dx = F.pad(height[..., 1:] - height[..., :-1], (0, 1))
    dy = F.pad(height[..., 1:, :] - height[..., :-1, :], (0, 0, 0, 1))
    normals = F.normalize(torch.cat([-dx, -dy, torch.full_like(dx, 0.2)], dim=1), dim=1)
    labels = ((height.squeeze(1) + 2) * LABELS / 4).long().clamp(0, LABELS - 1)
    edges = (dx.square() + dy.square() > 0.03).float()
    light = F.normalize(torch.randn(count, 3, 1, 1, generator=gen), dim=1)
    shade = (normals * light).sum(dim=1, keepdim=True)
    image = torch.cat([shade, height, shade * height], dim=1)
    image = image + 0.1 * torch.randn(image.shape, generator=gen)
    return image, labels, height, normals, edges


def conv(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)
    )


class SceneNet(L.LightningModule):
    TASKS = {"labels": LABELS, "depth": 1, "normals": 3, "edges": 1}

    def __init__(self, width=24, lr=2e-3):
        super().__init__()
        self.automatic_optimization = False
        self.trunk = nn.Sequential(
            conv(3, width), conv(width, width, 2), conv(width, 2 * width), conv(2 * width, 2 * width)
        )
        self.heads = nn.ModuleDict({name: nn.Conv2d(2 * width, out, 1) for name, out in self.TASKS.items()})
        self.log_vars = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.TASKS})
        self.to(memory_format=torch.channels_last)
        self.lr = lr

    def forward(self, image):
        features = self.trunk(image)
        return {
            name: F.interpolate(head(features), scale_factor=2, mode="bilinear") for name, head in self.heads.items()
        }

    def losses(self, batch):
        image, labels, depth, normals, edges = batch
        out = self(image)
        return {
            "labels": F.cross_entropy(out["labels"], labels),
            "depth": F.smooth_l1_loss(out["depth"], depth),
            "normals": (1 - F.cosine_similarity(out["normals"], normals)).mean(),
            "edges": F.binary_cross_entropy_with_logits(out["edges"], edges),
        }

    def weighted(self, name, loss):
        """Uncertainty weighting after Kendall et al."""
        return torch.exp(-self.log_vars[name]) * loss + self.log_vars[name] / 2

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        losses = self.losses(batch)
        optimizer.zero_grad()
        for name, loss in losses.items():
            self.manual_backward(self.weighted(name, loss), retain_graph=True)  # costs time
        self.clip_gradients(optimizer, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        optimizer.step()
        total = sum(loss.detach() for loss in losses.values())
        self.log("train_loss", total, on_step=False, on_epoch=True)

    def on_train_epoch_end(self):
        self.lr_schedulers().step()

    def validation_step(self, batch, batch_idx):
        self.log_dict({f"val_{name}": loss for name, loss in self.losses(batch).items()})

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


if __name__ == "__main__":
    L.seed_everything(17)
    train = DataLoader(TensorDataset(*render_scenes(480, 1)), batch_size=8, shuffle=True)
    val = DataLoader(TensorDataset(*render_scenes(64, 2)), batch_size=16)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SceneNet(), train, val)
