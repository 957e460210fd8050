"""Trains an edge-conditioned message-passing network that forecasts travel speed on sub-graphs of a road network.
The messages are averaged by scatter_reduce with an expanded index, which is many times slower here than index_add.
---
expect: PD335
half: tune
fix:
  ? "index = target.unsqueeze(1).expand_as(message)"
  : "degree = torch.bincount(target, minlength=len(states)).clamp_min(1).unsqueeze(1)"
  ? "scatter_reduce(0, index, message, self.pooling, include_self=False)  # costs time"
  : "index_add(0, target, message) / degree"
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

HISTORY = 12
HORIZON = 3
ROAD_FEATURES = 4

RoadGraph = tuple[Tensor, Tensor, Tensor, Tensor]


class RoadSubgraphs(Dataset[RoadGraph]):
    """Clusters of a road network, each with the recent speeds of its segments and the speeds to be forecast."""

    def __init__(self, clusters: int, segments: int, degree: int) -> None:
        generator = torch.Generator().manual_seed(13)
        self.graphs: list[RoadGraph] = []
        for _ in range(clusters):
            source = torch.arange(segments).repeat_interleave(degree)
            hop = torch.randint(1, 40, (segments * degree,), generator=generator)
            edges = torch.stack([source, (source + hop) % segments])
            road = torch.rand(edges.size(1), ROAD_FEATURES, generator=generator)
            daily = torch.sin(torch.arange(HISTORY + HORIZON) / 3.0)
            base = torch.randn(segments, 1, generator=generator)
            noise = torch.randn(segments, HISTORY + HORIZON, generator=generator)
            speed = base + daily + 0.2 * noise
            self.graphs.append((speed[:, :HISTORY].contiguous(), edges, road, speed[:, HISTORY:].contiguous()))

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> RoadGraph:
        return self.graphs[index]


class EdgeConditionedLayer(nn.Module):
    """Messages from both ends of a road, gated by its features and averaged at the receiving segment."""

    def __init__(self, width: int, pooling: str = "mean") -> None:
        super().__init__()
        self.pooling = pooling
        self.road = nn.Linear(ROAD_FEATURES, 1)
        self.update = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, states: Tensor, edges: Tensor, road: Tensor) -> Tensor:
        source, target = edges
        sender, receiver = states.index_select(0, source), states.index_select(0, target)
        message = F.relu(sender + receiver) * torch.sigmoid(self.road(road))
        index = target.unsqueeze(1).expand_as(message)
        pooled = torch.zeros_like(states)
        pooled = pooled.scatter_reduce(0, index, message, self.pooling, include_self=False)  # costs time
        return self.norm(states + F.silu(self.update(torch.cat([states, pooled], dim=-1))))


class SpeedForecaster(L.LightningModule):
    def __init__(self, width: int = 64, layers: int = 2, lr: float = 2e-3) -> None:
        super().__init__()
        self.lr = lr
        self.encode = nn.Sequential(nn.Linear(HISTORY, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(EdgeConditionedLayer(width) for _ in range(layers))
        self.decode = nn.Linear(width, HORIZON)

    def forward(self, speed: Tensor, edges: Tensor, road: Tensor) -> Tensor:
        states = self.encode(speed)
        for layer in self.layers:
            states = layer(states, edges, road)
        return self.decode(states)

    def training_step(self, batch: RoadGraph, batch_idx: int) -> Tensor:
        speed, edges, road, future = batch
        forecast = self(speed, edges, road)
        loss = F.huber_loss(forecast, future)
        self.log("train/huber", loss, batch_size=1)
        self.log("train/mae", (forecast.detach() - future).abs().mean(), batch_size=1)
        return loss

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main() -> None:
    L.seed_everything(13)
    graphs = RoadSubgraphs(clusters=50, segments=3000, degree=10)
    loader = DataLoader(graphs, batch_size=None, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(SpeedForecaster(), loader)


if __name__ == "__main__":
    main()
