// Token and position embedding, for a whole vocabulary or a rank's part of it.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// Vocabulary range of a table: its rows are tokens [first, first + rows) of `size`. size 0: the table is the
// whole vocabulary.
struct VocabPart {
  int64_t first = 0, size = 0;
};

// y[i, :] = wte[tokens[i] - part.first, :] + wpe[p, :] with p = positions[i] if positions are given, else
// first_position + i % seq. A token of another part adds nothing. tokens: [rows] int32, all in the vocabulary
// (otherwise the body throws Error(data) with the token and its index); y: [rows, width]; wte: [tokens of the
// part, width]; wpe: [positions, width] or undefined; positions: int32 [rows] below wpe's rows, or undefined.
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
// accumulate_wte (accumulate_wpe) the whole gradient is zeroed first. Each call rounds sums once.
struct EmbeddingBackward {
  Tensor dwte = {}, dwpe = {};
  Tensor dy, tokens;
  VocabPart part = {};
  int64_t seq = 1, first_row = 0;
  bool accumulate_wte = false, accumulate_wpe = false;
  void check() const;
  // Sums of the present rows, in the type of the gradients.
  Traffic traffic() const {
    return {dy.dtype(), 2.0 * double(dy.bytes()) + 2.0 * double(dy.numel() * size_of(dwte.dtype()))};
  }
};
CLEAVE_KERNEL(EmbeddingBackward)

// Position of each row within its document: positions[b, t] = first + t - documents[b, first + t]. The rows
// of sequence b are its positions [first, first + positions.dim(1)). documents: int32 [batch, positions per
// sequence], as in AttentionMask; positions: int32 [batch, rows per sequence].
struct DocumentPositions {
  Tensor positions;
  Tensor documents;
  int64_t first = 0;
  void check() const;
  Traffic traffic() const { return {positions, documents}; }
};
CLEAVE_KERNEL(DocumentPositions)

}  // namespace cleave::kernels
