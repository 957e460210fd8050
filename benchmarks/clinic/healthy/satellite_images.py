"""A small patch transformer classifies the land use of satellite image tiles; a callback keeps an exponential average
of the weights and uses it for validation.
---
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

BANDS, SIZE, PATCH, CLASSES = 4, 32, 4, 9


class Tiles(Dataset):
    """Multispectral tiles whose texture depends on the class."""

    def __init__(self, count, seed):
        textures = torch.randn(CLASSES, BANDS, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        self.tiles = torch.randn(count, BANDS, SIZE, SIZE, generator=generator)
        self.tiles += 0.3 * textures[self.labels]

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        return self.tiles[indices], self.labels[indices]


def as_is(batch):
    return batch


class WeightAverage(lightning.Callback):
    """Exponential average of the weights, updated in one go for all parameters."""

    def __init__(self, decay=0.98):
        self.decay = decay

    def on_fit_start(self, trainer, module):
        self.weights = list(module.parameters())
        self.averages = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        torch._foreach_lerp_(self.averages, self.weights, 1 - self.decay)

    def swap(self):
        for i, weight in enumerate(self.weights):
            weight.data, self.averages[i] = self.averages[i], weight.data

    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking:
            self.swap()

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.swap()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.ReLU(), nn.Linear(3 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class LandUse(lightning.LightningModule):
    def __init__(self, width=128, heads=4, depth=2):
        super().__init__()
        self.patches = nn.Linear(BANDS * PATCH * PATCH, width)
        self.places = nn.Parameter(0.02 * torch.randn((SIZE // PATCH) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tiles):
        side = SIZE // PATCH
        x = (
            tiles.view(-1, BANDS, side, PATCH, side, PATCH)
            .permute(0, 2, 4, 1, 3, 5)
            .reshape(len(tiles), side * side, -1)
        )
        return self.head(self.blocks(self.patches(x) + self.places).mean(1))

    def training_step(self, batch, batch_idx):
        tiles, labels = batch
        return F.cross_entropy(self(tiles), labels)

    def validation_step(self, batch, batch_idx):
        tiles, labels = batch
        self.log("val_loss", F.cross_entropy(self(tiles), labels), batch_size=len(tiles))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(31)
    train = DataLoader(Tiles(1184, 1), batch_size=32, shuffle=True, collate_fn=as_is)
    valid = DataLoader(Tiles(128, 2), batch_size=64, collate_fn=as_is)
    trainer = lightning.Trainer(
        max_epochs=3,
        callbacks=[WeightAverage()],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LandUse(), train, valid)
    print("val_loss", trainer.callback_metrics["val_loss"].item())
