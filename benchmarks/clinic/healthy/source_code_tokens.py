"""Next-token language model on a stream of source-code tokens: a small decoder with fused attention, trained on random
windows of a token buffer in memory.
---
half: score
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

VOCABULARY, CONTEXT, BATCH, STEPS = 512, 64, 16, 220
STREAM_TOKENS = 400_000


def make_stream() -> Tensor:
    """Snippets of a fixed library repeated in random order, with some renamed identifiers."""
    generator = torch.Generator().manual_seed(81)
    library = torch.randint(0, VOCABULARY, (256, 20), generator=generator)
    order = torch.randint(0, 256, (STREAM_TOKENS // 20,), generator=generator)
    stream = library[order].flatten()
    renamed = torch.rand(STREAM_TOKENS, generator=generator) < 0.05
    return torch.where(renamed, torch.randint(0, VOCABULARY, (STREAM_TOKENS,), generator=generator), stream)


class WindowStream(IterableDataset):
    """Batches of random windows, one token longer than the context."""

    def __init__(self, stream: Tensor) -> None:
        self.windows = stream.unfold(0, CONTEXT + 1, 1)

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(STEPS):
            yield self.windows[torch.randint(0, self.windows.shape[0], (BATCH,))]


class DecoderBlock(nn.Module):
    """Pre-norm causal attention and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(x)


class CodeModel(LightningModule):
    """Decoder-only transformer with tied embeddings."""

    def __init__(self, width: int = 128, depth: int = 2, heads: int = 4, lr: float = 2e-3) -> None:
        super().__init__()
        self.lr = lr
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.blocks = nn.Sequential(*[DecoderBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.blocks(self.tokens(tokens) + self.positions)
        return F.linear(self.norm(hidden), self.tokens.weight)

    def training_step(self, window: Tensor, batch_idx: int) -> Tensor:
        logits = self(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=BATCH)
        return loss

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    seed_everything(81)
    loader = DataLoader(WindowStream(make_stream()), batch_size=None)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CodeModel(), loader)
    print(f"loss {trainer.callback_metrics['train_loss']:.3f}")


if __name__ == "__main__":
    main()
