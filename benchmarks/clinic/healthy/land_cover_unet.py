"""An encoder-decoder with skip connections segments fields, water and forest in synthetic satellite tiles.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
BANDS, SIDE, CLASSES = 6, 32, 4


def make_tiles(n, seed):
    """Smooth land cover maps; every class has a spectrum, and the light varies between tiles."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, CLASSES, 6, 6, generator=g)
    cover = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear").argmax(1)
    spectra = torch.rand(CLASSES, BANDS, generator=torch.Generator().manual_seed(0))
    light = 0.7 + 0.6 * torch.rand(n, 1, 1, 1, generator=g)
    tiles = spectra[cover].permute(0, 3, 1, 2) * light
    tiles = tiles + 0.3 * torch.randn(n, BANDS, SIDE, SIDE, generator=g)
    return TensorDataset(tiles.contiguous(), cover)


def loader(data, size, shuffle):
    order = RandomSampler(data) if shuffle else range(len(data))
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


def stage(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class Segmenter(L.LightningModule):
    def __init__(self, c=24):
        super().__init__()
        self.top = stage(BANDS, c)
        self.middle = stage(c, 2 * c)
        self.bottom = stage(2 * c, 2 * c)
        self.up_middle = nn.ConvTranspose2d(2 * c, 2 * c, 2, stride=2)
        self.join_middle = stage(4 * c, c)
        self.up_top = nn.ConvTranspose2d(c, c, 2, stride=2)
        self.classify = nn.Conv2d(2 * c, CLASSES, 3, padding=1)

    def forward(self, x):
        a = self.top(x)
        b = self.middle(F.max_pool2d(a, 2))
        d = self.bottom(F.max_pool2d(b, 2))
        b = self.join_middle(torch.cat([b, self.up_middle(d)], dim=1))
        return self.classify(torch.cat([a, self.up_top(b)], dim=1))

    def training_step(self, batch, _):
        tiles, cover = batch
        loss = F.cross_entropy(self(tiles), cover)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        tiles, cover = batch
        logits = self(tiles)
        right = (logits.argmax(1) == cover).float().mean()
        self.log_dict({"val_loss": F.cross_entropy(logits, cover), "val_acc": right}, batch_size=len(tiles))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def main():
    L.seed_everything(81)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=5,
    )
    trainer.fit(Segmenter(), loader(make_tiles(720, 1), 12, True), loader(make_tiles(128, 2), 32, False))
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
