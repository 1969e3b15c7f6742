// Token and position embedding, of a whole vocabulary or of the part that a rank holds.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// The part of a vocabulary of `size` tokens that a table's rows stand for: tokens [first, first + rows).
// size 0: the table is the whole vocabulary.
struct VocabPart {
  int64_t first = 0, size = 0;
};

// y[i, :] = wte[tokens[i] - part.first, :] + wpe[p, :], where p is positions[i] where these are given and
// first_position + i % seq otherwise; a token of another part adds nothing. tokens: [rows] int32, every one
// in the vocabulary (the body throws Error(data) naming the token and its index otherwise); y: [rows, width];
// wte: [tokens of the part, width]; wpe: [positions, width] or undefined; positions: int32 [rows] below wpe's
// rows, or undefined.
struct EmbeddingForward {
  Tensor y;
  Tensor tokens, wte, wpe = {}, positions = {};
  VocabPart part = {};
  int64_t seq = 1, first_position = 0;
  void check() const;
  Traffic traffic() const { return {y, y}; }
};
CLEAVE_KERNEL(EmbeddingForward)

// dwte[tokens[i] - part.first, :] += dy[i, :] for tokens of the part, dwpe[(first_row + i) % seq, :] += dy[i,
// :]. Either gradient may be undefined. Deterministic: each row of dwte adds its tokens in order. Without
// accumulate_wte (accumulate_wpe) the whole gradient is zeroed first. Sums are rounded once for each call.
struct EmbeddingBackward {
  Tensor dwte = {}, dwpe = {};
  Tensor dy, tokens;
  VocabPart part = {};
  int64_t seq = 1, first_row = 0;
  bool accumulate_wte = false, accumulate_wpe = false;
  void check() const;
  // Sums of the rows that are there, in the type of the gradients.
  Traffic traffic() const {
    return {dy.dtype(), 2.0 * double(dy.bytes()) + 2.0 * double(dy.numel() * size_of(dwte.dtype()))};
  }
};
CLEAVE_KERNEL(EmbeddingBackward)

// How far from the beginning of its document a row stands: positions[b, t] = first + t - documents[b, first +
// t], where the rows of sequence b are its positions [first, first + positions.dim(1)). documents: int32
// [batch, positions of a sequence], as AttentionMask has them; positions: int32 [batch, rows of a sequence].
struct DocumentPositions {
  Tensor positions;
  Tensor documents;
  int64_t first = 0;
  void check() const;
  Traffic traffic() const { return {positions, documents}; }
};
CLEAVE_KERNEL(DocumentPositions)

}  // namespace cleave::kernels
