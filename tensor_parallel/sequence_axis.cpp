#include "tensor_parallel/sequence_axis.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/elementwise.h"

namespace cleave::tensor_parallel {
namespace {

template <class Fits>
std::string sizes_that(int64_t most, Fits fits) {
  std::vector<int64_t> sizes;
  for (int64_t n = 1; n <= most && sizes.size() < 12; ++n)
    if (fits(n)) sizes.push_back(n);
  return fmt::format("{}", fmt::join(sizes, ", "));
}

// Blocks of an exchange, one per rank: [rows, width] each, packed.
struct Blocks {
  int64_t ranks, rows, width, positions;
  int64_t samples() const { return rows / positions; }
  int64_t numel() const { return rows * width; }
};

// Exchange between `tokens`, [rows, width], and their twin: send and receive buffers, and two copies of
// `added` columns of tokens, in scratch for the duration of the call.
struct Exchange {
  Exchange(Tensor tokens, Tensor twin, int64_t positions, int64_t ranks, int64_t added, Arena& scratch)
      : blocks{ranks, tokens.dim(0), twin.dim(1), positions} {
    const int64_t mark = scratch.mark();
    for (Tensor* t : {&leaving, &coming})
      *t = scratch.take(tokens.dtype(), {blocks.ranks, blocks.rows, blocks.width});
    for (Tensor* t : {&sum, &addend})
      if (added > 0) *t = scratch.take(tokens.dtype(), {blocks.rows, added});
    scratch.release(mark);
  }
  Blocks blocks;
  Tensor leaving, coming, sum, addend;
};

kernels::CopyRuns reversed(kernels::CopyRuns move) {
  std::swap(move.y, move.x), std::swap(move.outer.y, move.outer.x), std::swap(move.inner.y, move.inner.x);
  return move;
}

// Copies one group of heads: from columns in rows with stride `row` to every copies-th block, also as
// columns. y and x begin at the group's first column.
kernels::CopyRuns to_blocks(Tensor blocks, Tensor columns, const Blocks& b, int64_t all, int64_t copies,
                            int64_t row) {
  const int64_t each = all * copies / b.ranks;
  return {.y = blocks,
          .x = columns,
          .width = each,
          .outer = {b.ranks / copies, copies * b.numel(), each},
          .inner = {b.rows, b.width, row}};
}

// Calls body(group index, its first column in tokens, its first column in a block).
template <class Body>
void each_group(const HeadGroups& groups, int64_t ranks, Body body) {
  int64_t in_tokens = 0, in_block = 0;
  for (size_t g = 0; g < groups.widths.size(); ++g) {
    if (groups.widths[g] > 0) body(g, in_tokens, in_block);
    in_tokens += groups.widths[g], in_block += groups.widths[g] * groups.copies[g] / ranks;
  }
}

// Copies the columns of `tokens` to all blocks that contain them.
void pack_columns(const Exchange& e, Tensor tokens, const HeadGroups& groups, Stream& stream) {
  const Blocks& b = e.blocks;
  each_group(groups, b.ranks, [&](size_t g, int64_t in_tokens, int64_t in_block) {
    const Tensor columns = tokens.slice({in_tokens, tokens.numel()});
    for (int64_t copy = 0; copy < groups.copies[g]; ++copy) {
      const Tensor blocks = e.leaving.slice({copy * b.numel() + in_block, e.leaving.numel()});
      kernels::launch(to_blocks(blocks, columns, b, groups.widths[g], groups.copies[g], tokens.dim(1)),
                      stream);
    }
  });
}

// Reverses pack_columns: adds the columns of several blocks in rank order.
void unpack_columns(const Exchange& e, Tensor tokens, const HeadGroups& groups, Stream& stream) {
  const Blocks& b = e.blocks;
  each_group(groups, b.ranks, [&](size_t g, int64_t in_tokens, int64_t in_block) {
    const int64_t all = groups.widths[g], copies = groups.copies[g];
    const Tensor columns = tokens.slice({in_tokens, tokens.numel()});
    const auto bring = [&](int64_t copy, Tensor to, int64_t row) {
      const Tensor blocks = e.coming.slice({copy * b.numel() + in_block, e.coming.numel()});
      kernels::launch(reversed(to_blocks(blocks, to, b, all, copies, row)), stream);
    };
    if (copies == 1) return bring(0, columns, tokens.dim(1));
    const Tensor sum = e.sum.slice({0, b.rows * all}), addend = e.addend.slice({0, b.rows * all});
    bring(0, sum, all);
    for (int64_t copy = 1; copy < copies; ++copy) {
      bring(copy, addend, all);
      kernels::launch(kernels::Axpy{.y = sum, .x = addend}, stream);
    }
    kernels::launch(
        kernels::CopyRuns{.y = columns, .x = sum, .width = all, .inner = {b.rows, tokens.dim(1), all}},
        stream);
  });
}

// Copies between the rows of `twin`, [samples, ranks, positions, width], and blocks of them.
void move_rows(Tensor blocks, Tensor twin, const Blocks& b, bool pack, Stream& stream) {
  const int64_t run = b.positions * b.width;
  kernels::CopyRuns move{.y = blocks,
                         .x = twin,
                         .width = run,
                         .outer = {b.ranks, b.numel(), run},
                         .inner = {b.samples(), run, run * b.ranks}};
  if (!pack)
    std::swap(move.y, move.x), std::swap(move.outer.y, move.outer.x), std::swap(move.inner.y, move.inner.x);
  kernels::launch(move, stream);
}

}  // namespace

Range SequenceAxis::positions(int64_t seq) const {
  if (seq % size() != 0)
    fail(Exit::usage,
         "sequence_parallel_size: {} positions of a sequence are not divisible by {} ranks (expected {}); "
         "change it, or choose another sequence length",
         seq, size(), sizes_that(seq, [&](int64_t n) { return seq % n == 0; }));
  return Range{0, seq / size()}.shifted(rank() * (seq / size()));
}

SequenceAxis::Heads SequenceAxis::heads(int64_t heads, int64_t kv_heads) const {
  const auto fits = [&](int64_t n) { return heads % n == 0 && (kv_heads % n == 0 || n % kv_heads == 0); };
  if (!fits(size()))
    fail(Exit::usage,
         "sequence_parallel_size: {} heads with {} key/value heads cannot be divided among {} ranks "
         "(expected {})",
         heads, kv_heads, size(), sizes_that(heads, fits));
  const int64_t shared = std::max<int64_t>(kv_heads, size());
  return {heads / size(), shared / size(), shared / kv_heads};
}

int64_t SequenceAxis::twin_width(const HeadGroups& groups) const {
  int64_t width = 0;
  for (size_t g = 0; g < groups.widths.size(); ++g) width += groups.widths[g] * groups.copies[g] / size();
  return width;
}

Tensor SequenceAxis::twin_of(Tensor tokens, const HeadGroups& groups, Arena& scratch) const {
  if (!ranks_) return tokens;
  return scratch.take(tokens.dtype(), {tokens.dim(0) * size(), twin_width(groups)});
}

void SequenceAxis::to_heads(Tensor twin, Tensor tokens, const HeadGroups& groups, int64_t positions,
                            Arena& scratch, Stream& stream, std::string_view what) const {
  if (!ranks_) return;
  const Exchange e(tokens, twin, positions, size(), 0, scratch);
  if (stream.discards()) return;
  pack_columns(e, tokens, groups, stream);
  ranks_->all_to_all(e.coming, e.leaving, stream, {.what = what});
  move_rows(e.coming, twin, e.blocks, false, stream);
}

void SequenceAxis::to_tokens(Tensor tokens, Tensor twin, const HeadGroups& groups, int64_t positions,
                             Arena& scratch, Stream& stream, std::string_view what) const {
  if (!ranks_) return;
  int64_t added = 0;
  for (size_t g = 0; g < groups.widths.size(); ++g)
    if (groups.copies[g] > 1) added = std::max(added, groups.widths[g]);
  const Exchange e(tokens, twin, positions, size(), added, scratch);
  if (stream.discards()) return;
  move_rows(e.leaving, twin, e.blocks, true, stream);
  ranks_->all_to_all(e.coming, e.leaving, stream, {.what = what});
  unpack_columns(e, tokens, groups, stream);
}

}  // namespace cleave::tensor_parallel
