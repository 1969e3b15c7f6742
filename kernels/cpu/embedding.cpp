#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/operands.h"
#include "kernels/cpu/scratch.h"

namespace cleave::kernels::cpu {
namespace {

void require_tokens(const Tensor& tokens, int64_t vocab) {
  const int32_t* t = tokens.as<int32_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i)
    require(
        t[i] >= 0 && t[i] < vocab, Exit::data,
        "token {} at position {} of the batch is outside the vocabulary [0, {}); the data was tokenized for "
        "another "
        "model, or vocab_size is too small",
        t[i], i, vocab);
}

int64_t size_of(const VocabPart& part, const Tensor& table) { return part.size ? part.size : table.dim(0); }

// Groups the places of equal tokens, in their order; skips tokens outside [first, first + count).
struct Grouping {
  std::vector<int32_t> order, starts;
};
Grouping group(const Tensor& tokens, int64_t first, int64_t count) {
  const int32_t* t = tokens.as<int32_t>();
  const int64_t rows = tokens.numel();
  std::vector<int64_t> keys;
  keys.reserve(size_t(rows));
  for (int64_t i = 0; i < rows; ++i)
    if (t[i] >= first && t[i] < first + count) keys.push_back((int64_t{t[i]} << 32) | i);
  std::sort(keys.begin(), keys.end());
  Grouping g;
  g.order.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i == 0 || (keys[i] >> 32) != (keys[i - 1] >> 32)) g.starts.push_back(int32_t(i));
    g.order.push_back(int32_t(keys[i] & 0xffffffff));
  }
  g.starts.push_back(int32_t(keys.size()));
  return g;
}

}  // namespace

void run(const EmbeddingForward& op) {
  require_tokens(op.tokens, size_of(op.part, op.wte));
  embedding({.y = vec(op.y),
             .wte = vec(op.wte),
             .wpe = vec(op.wpe),
             .tokens = op.tokens.as<int32_t>(),
             .positions = op.positions.defined() ? op.positions.as<int32_t>() : nullptr,
             .rows = op.y.dim(0),
             .width = op.y.dim(1),
             .seq = op.seq,
             .first_position = op.first_position,
             .first_token = op.part.first,
             .table_rows = op.wte.dim(0)});
}

void run(const EmbeddingBackward& op) {
  const bool tokens = op.dwte.defined();
  if (tokens) require_tokens(op.tokens, size_of(op.part, op.dwte));
  if (!op.accumulate_wte && tokens) std::memset(op.dwte.raw(), 0, size_t(op.dwte.bytes()));
  if (!op.accumulate_wpe && op.dwpe.defined()) std::memset(op.dwpe.raw(), 0, size_t(op.dwpe.bytes()));
  if (op.dy.dim(0) == 0) return;
  const Grouping g = group(op.tokens, op.part.first, tokens ? op.dwte.dim(0) : 0);
  embedding_grad({.dwte = vec(op.dwte),
                  .dwpe = vec(op.dwpe),
                  .dy = vec(op.dy),
                  .rows = op.dy.dim(0),
                  .width = op.dy.dim(1),
                  .seq = op.seq,
                  .first_row = op.first_row,
                  .first_token = op.part.first,
                  .order = g.order.data(),
                  .groups = g.starts.data(),
                  .tokens = op.tokens.as<int32_t>(),
                  .group_count = int64_t(g.starts.size()) - 1,
                  .accumulate_wte = op.accumulate_wte,
                  .accumulate_wpe = op.accumulate_wpe});
}

void run(const DocumentPositions& op) {
  int32_t* positions = op.positions.as<int32_t>();
  const int32_t* documents = op.documents.as<int32_t>() + op.first;
  const int64_t rows = op.positions.dim(1), seq = op.documents.dim(1);
  for (int64_t b = 0; b < op.positions.dim(0); ++b)
    for (int64_t t = 0; t < rows; ++t)
      positions[b * rows + t] = int32_t(op.first + t) - documents[b * seq + t];
}

}  // namespace cleave::kernels::cpu
