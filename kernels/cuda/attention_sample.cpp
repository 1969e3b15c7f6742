#include "kernels/cuda/attention_sample.h"

#include <algorithm>
#include <cmath>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::kernels::gpu {
namespace {

// A few 16-bit roundings of probabilities and their gradients, relative to the largest value.
constexpr double kSampleBound = 0x1p-6;
constexpr double kSampleGradientBound = 0x1p-5;

// Rows of columns, in memory that holds more columns.
struct Columns {
  Tensor x;
  int64_t of = 0;  // columns in memory
  int64_t first_row = 0, first = 0;
};

void copy_columns(const Columns& to, const Columns& from, int64_t rows, int64_t columns, Stream& stream) {
  const auto at = [](const Columns& c) { return c.x.slice({c.first_row * c.of + c.first, c.x.numel()}); };
  launch(CopyRuns{.y = at(to), .x = at(from), .width = columns, .outer = {rows, to.of, from.of}}, stream);
}

// The heads of a sequence that share a key/value head, or one of them, at `tokens` consecutive tokens.
struct Sample {
  const AttentionForward& op;
  int64_t sequence, head, heads;  // query heads
  int64_t first = 0, tokens = 0;

  int64_t kv_head() const { return head / (op.heads / op.kv_heads); }
  int64_t row() const { return sequence * op.seq + first; }
  int64_t narrow() const { return heads * op.head_dim; }
  int64_t joined() const { return (heads + 2) * op.head_dim; }

  Tensor outputs(const Tensor& all, TrialSpace& space, Stream& stream) const {
    const Tensor part = space.take(all.dtype(), {tokens, narrow()});
    copy_columns({part, narrow()}, {all, op.heads * op.head_dim, row(), head * op.head_dim}, tokens, narrow(),
                 stream);
    return part;
  }
  Tensor row_sums(TrialSpace& space, Stream& stream) const {
    const Tensor part = space.take(DType::fp32, {1, heads, tokens});
    copy_columns({part, tokens}, {op.lse, op.seq, sequence * op.heads + head, first}, heads, tokens, stream);
    return part;
  }
  Tensor joined_rows(const Tensor& all, TrialSpace& space, Stream& stream) const {
    const Tensor part = space.take(all.dtype(), {tokens, joined()});
    const int64_t dim = op.head_dim, of = (op.heads + 2 * op.kv_heads) * dim;
    const auto from = [&](int64_t which) { return Columns{all, of, row(), which * dim}; };
    copy_columns({part, joined()}, from(head), tokens, narrow(), stream);
    copy_columns({part, joined(), 0, narrow()}, from(op.heads + kv_head()), tokens, dim, stream);
    copy_columns({part, joined(), 0, narrow() + dim}, from(op.heads + op.kv_heads + kv_head()), tokens, dim,
                 stream);
    return part;
  }
  AttentionForward alone(const Tensor& y, const Tensor& lse, const Tensor& qkv) const {
    AttentionForward part{.y = y, .lse = lse, .qkv = qkv, .batch = 1, .seq = tokens, .heads = heads};
    part.head_dim = op.head_dim, part.scale = op.scale, part.cap = op.cap;
    return part;
  }
};

int64_t fitting_tokens(const AttentionForward& op, int64_t most_tokens, int64_t bytes_per_token) {
  constexpr int64_t kRounding = int64_t{1} << 16;  // alignment of all tensors of a sample
  return std::min({op.seq, most_tokens, (TrialSpace::kBytes - kRounding) / bytes_per_token});
}

template <class T>
std::optional<Verdict> first_difference(const char* what, const Tensor& got, const Tensor& want, int64_t of,
                                        Range columns, double bound, Stream& stream) {
  const std::vector<T> a = to_host<T>(got, stream), b = to_host<T>(want, stream);
  const auto each = [&](auto f) {
    for (size_t row = 0; row < a.size(); row += size_t(of))
      for (auto i = row + size_t(columns.begin); i < row + size_t(columns.end); ++i)
        if (!f(double(to_float(a[i])), double(to_float(b[i])))) return false;
    return true;
  };
  double largest = 0;
  if (!each([&](double, double y) {
        largest = std::max(largest, std::fabs(y));
        return std::isfinite(y);
      }))
    return std::nullopt;
  Verdict verdict;
  each([&](double x, double y) {
    if (std::fabs(x - y) <= bound * largest) return true;
    verdict = fmt::format("{} has {:.6g}, the own kernels give {:.6g}", what, x, y);
    return false;
  });
  return verdict;
}

// Compares these columns of rows with `of` columns.
std::optional<Verdict> difference_in(const char* what, const Tensor& got, const Tensor& want, int64_t of,
                                     Range columns, double bound, Stream& stream) {
  return with_float(got.dtype(), [&](auto zero) {
    return first_difference<decltype(zero)>(what, got, want, of, columns, bound, stream);
  });
}

// Calls f with the first sequence and head, then with the last ones, until it finds a difference.
template <class F>
std::optional<Verdict> in_both_corners(const AttentionForward& op, const F& f) {
  const std::optional<Verdict> first = f(0, 0);
  return first && first->empty() ? f(op.batch - 1, op.heads - 1) : first;
}

}  // namespace

std::optional<Verdict> sampled_difference(const AttentionForward& op, Stream& stream, int64_t most_tokens) {
  const int64_t dim = op.head_dim,
                tokens = fitting_tokens(op, most_tokens, 5 * dim * size_of(op.y.dtype()) + 8);
  return in_both_corners(op, [&](int64_t sequence, int64_t head) {
    TrialSpace space(stream);
    const Sample sample{op, sequence, head, 1, 0, tokens};
    const AttentionForward own =
        sample.alone(space.take(op.y.dtype(), {tokens, dim}), space.take(DType::fp32, {1, 1, tokens}),
                     sample.joined_rows(op.qkv, space, stream));
    run_own(own, stream);
    const std::optional<Verdict> y = difference_in("the output", sample.outputs(op.y, space, stream), own.y,
                                                   dim, {0, dim}, kSampleBound, stream);
    if (!y || !y->empty()) return y;
    return difference_in("the row sums", sample.row_sums(space, stream), own.lse, tokens, {0, tokens},
                         kSampleBound, stream);
  });
}

std::optional<Verdict> sampled_difference(const AttentionBackward& op, Stream& stream, int64_t most_tokens) {
  const AttentionForward& forward = op.forward;
  const int64_t dim = forward.head_dim, heads = forward.heads / forward.kv_heads;
  const int64_t values = 3 * (heads + 2) * dim + 2 * heads * dim;
  const int64_t tokens =
      fitting_tokens(forward, most_tokens, values * size_of(op.dy.dtype()) + heads * int64_t(sizeof(float)));
  return in_both_corners(forward, [&](int64_t sequence, int64_t head) -> std::optional<Verdict> {
    // With the row sums of the whole sequence, the gradients of queries depend only on tokens up to their
    // own, those of keys and values only on later ones.
    for (const bool keys : {false, true}) {
      TrialSpace space(stream);
      const Sample sample{forward, sequence, head / heads * heads, heads, keys ? forward.seq - tokens : 0,
                          tokens};
      const AttentionForward own =
          sample.alone(sample.outputs(forward.y, space, stream), sample.row_sums(space, stream),
                       sample.joined_rows(forward.qkv, space, stream));
      const Tensor dqkv = space.take(op.dqkv.dtype(), {tokens, sample.joined()});
      run_own(AttentionBackward{dqkv, sample.outputs(op.dy, space, stream), own}, stream);
      const Tensor got = sample.joined_rows(op.dqkv, space, stream);
      const auto compared = [&](const char* what, int64_t begin, int64_t end) {
        return difference_in(what, got, dqkv, sample.joined(), {begin, end}, kSampleGradientBound, stream);
      };
      const int64_t narrow = sample.narrow();
      std::optional<Verdict> found;
      if (!keys) {
        found = compared("the queries' gradient", 0, narrow);
      } else {
        found = compared("the keys' gradient", narrow, narrow + dim);
        if (found && found->empty()) found = compared("the values' gradient", narrow + dim, narrow + 2 * dim);
      }
      if (!found || !found->empty()) return found;
    }
    return Verdict();
  });
}

}  // namespace cleave::kernels::gpu
