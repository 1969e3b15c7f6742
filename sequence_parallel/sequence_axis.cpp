#include "sequence_parallel/sequence_axis.h"

#include <fmt/ranges.h>

#include "kernels/elementwise.h"

namespace cleave {
namespace {

template <class Fits>
std::string sizes_that(int64_t most, Fits fits) {
  std::vector<int64_t> sizes;
  for (int64_t n = 1; n <= most && sizes.size() < 12; ++n)
    if (fits(n)) sizes.push_back(n);
  return fmt::format("{}", fmt::join(sizes, ", "));
}

// Blocks of an exchange, one a rank: [rows, width] each, packed.
struct Blocks {
  int64_t ranks, rows, width, positions;
  int64_t samples() const { return rows / positions; }
  int64_t numel() const { return rows * width; }
};

// An exchange between `tokens`, [rows, width], and their twin: what leaves a rank and what comes to it, in
// scratch for the duration of the call.
struct Exchange {
  Exchange(Tensor tokens, Tensor twin, int64_t positions, int64_t ranks, Arena& scratch)
      : blocks{ranks, tokens.dim(0), twin.dim(1), positions} {
    const int64_t mark = scratch.mark();
    for (Tensor* t : {&leaving, &coming})
      *t = scratch.take(tokens.dtype(), {blocks.ranks, blocks.rows, blocks.width});
    scratch.release(mark);
  }
  Blocks blocks;
  Tensor leaving, coming;
};

// Between the columns of `tokens`, [rows, width * ranks], and blocks of them.
void move_columns(Tensor blocks, Tensor tokens, const Blocks& b, const HeadGroups& groups, bool pack,
                  Stream& stream) {
  int64_t in_block = 0;
  for (const int64_t all : groups.widths) {
    const int64_t each = all / b.ranks;
    const Tensor block = blocks.slice({in_block, blocks.numel()}),
                 columns = tokens.slice({in_block * b.ranks, tokens.numel()});
    in_block += each;
    if (each == 0) continue;
    CopyRuns move{.y = block,
                  .x = columns,
                  .width = each,
                  .outer = {b.ranks, b.numel(), each},
                  .inner = {b.rows, b.width, b.width * b.ranks}};
    if (!pack)
      std::swap(move.y, move.x), std::swap(move.outer.y, move.outer.x), std::swap(move.inner.y, move.inner.x);
    launch(move, stream);
  }
}

// Between the rows of `twin`, [samples, ranks, positions, width], and blocks of them.
void move_rows(Tensor blocks, Tensor twin, const Blocks& b, bool pack, Stream& stream) {
  const int64_t run = b.positions * b.width;
  CopyRuns move{.y = blocks,
                .x = twin,
                .width = run,
                .outer = {b.ranks, b.numel(), run},
                .inner = {b.samples(), run, run * b.ranks}};
  if (!pack)
    std::swap(move.y, move.x), std::swap(move.outer.y, move.outer.x), std::swap(move.inner.y, move.inner.x);
  launch(move, stream);
}

}  // namespace

Range SequenceAxis::positions(int64_t seq) const {
  if (seq % size() != 0)
    fail(Exit::usage,
         "{} positions of a sequence cannot be cut over {} sequence ranks; sequence_parallel_size may be {}, "
         "or "
         "choose another sequence length",
         seq, size(), sizes_that(seq, [&](int64_t n) { return seq % n == 0; }));
  return Range{0, seq / size()}.shifted(rank() * (seq / size()));
}

SequenceAxis::Heads SequenceAxis::heads(int64_t heads, int64_t kv_heads) const {
  const auto fits = [&](int64_t n) { return heads % n == 0 && kv_heads % n == 0; };
  if (!fits(size()))
    fail(Exit::usage,
         "{} heads with {} key/value heads cannot be exchanged by {} sequence ranks; sequence_parallel_size "
         "may be "
         "{}",
         heads, kv_heads, size(), sizes_that(heads, fits));
  return {heads / size(), kv_heads / size()};
}

Tensor SequenceAxis::twin_of(Tensor tokens, Arena& scratch) const {
  if (!ranks_) return tokens;
  return scratch.take(tokens.dtype(), {tokens.dim(0) * size(), tokens.dim(1) / size()});
}

void SequenceAxis::to_heads(Tensor twin, Tensor tokens, const HeadGroups& groups, int64_t positions,
                            Arena& scratch, Stream& stream, std::string_view what) const {
  if (!ranks_) return;
  const Exchange e(tokens, twin, positions, size(), scratch);
  if (stream.discards()) return;
  move_columns(e.leaving, tokens, e.blocks, groups, true, stream);
  ranks_->all_to_all(e.coming, e.leaving, stream, {.what = what});
  move_rows(e.coming, twin, e.blocks, false, stream);
}

void SequenceAxis::to_tokens(Tensor tokens, Tensor twin, const HeadGroups& groups, int64_t positions,
                             Arena& scratch, Stream& stream, std::string_view what) const {
  if (!ranks_) return;
  const Exchange e(tokens, twin, positions, size(), scratch);
  if (stream.discards()) return;
  move_rows(e.leaving, twin, e.blocks, true, stream);
  ranks_->all_to_all(e.coming, e.leaving, stream, {.what = what});
  move_columns(e.coming, tokens, e.blocks, groups, false, stream);
}

}  // namespace cleave
