"""A transformer of characters and its text: the help texts that ship with Python."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["Text", "Transformer", "loss_of"]

_CONTEXT = 64
_VALIDATION_BATCHES, _VALIDATION_ROWS = 16, 16


class Text:
    """The text as numbers; its last twentieth is for validation."""

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        characters = sorted(set(text))
        number_of = {character: number for number, character in enumerate(characters)}
        numbers = torch.tensor([number_of[character] for character in text])
        end = len(numbers) * 19 // 20
        self.character_count = len(characters)
        self._train, self._validation = numbers[:end], numbers[end:]

    def batch(self, rows: int, generator: torch.Generator) -> Tensor:
        """Pieces of the text for training, [rows, length]."""
        return _pieces(self._train, rows, generator)

    @torch.no_grad()
    def validation_loss(self, model: nn.Module) -> float:
        """The mean over always the same pieces of the other text."""
        generator = torch.Generator().manual_seed(0)
        pieces = [
            _pieces(self._validation, _VALIDATION_ROWS, generator)
            for _ in range(_VALIDATION_BATCHES)
        ]
        return sum(loss_of(model, each).item() for each in pieces) / len(pieces)


class Transformer(nn.Module):
    """Predicts the next character after each one of a piece of text."""

    def __init__(self, characters: int, *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.place = nn.Parameter(0.02 * torch.randn(_CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        self.mask = nn.Transformer.generate_square_subsequent_mask(_CONTEXT)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.embed(text) + self.place
        hidden = self.body(hidden, mask=self.mask, is_causal=True)
        return self.head(self.norm(hidden))


def loss_of(model: nn.Module, pieces: Tensor) -> Tensor:
    """The cross entropy of each character after the first."""
    return F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def _pieces(text: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - _CONTEXT - 1, (rows,), generator=generator)
    return torch.stack([text[start : start + _CONTEXT + 1] for start in starts.tolist()])
