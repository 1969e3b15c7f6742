#include "checkpoint/elements.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/error.h"

namespace cleave::checkpoint {
namespace {

// Elements as runs of equal length at equal distances; a range is one run.
struct Runs {
  explicit Runs(const Elements& e)
      : begin(e.range.begin),
        run(e.stride ? e.run : e.range.size()),
        stride(e.stride ? e.stride : std::max<int64_t>(1, run)),
        count(run ? e.numel() / run : 0) {}
  Range at(int64_t i) const { return Range{0, run}.shifted(begin + i * stride); }
  // Index of the first run that ends after this element of the whole tensor.
  int64_t after(int64_t element) const { return std::max<int64_t>(0, (element - begin - run) / stride); }
  int64_t begin, run, stride, count;
};

bool is_part_of(const Elements& e, int64_t numel) {
  const bool inside = 0 <= e.range.begin && e.range.begin < e.range.end && e.range.end <= numel;
  if (e.stride == 0) return inside && e.run == 0;
  return inside && 0 < e.run && e.run <= e.range.size() && e.run <= e.stride &&
         (e.range.size() - e.run) % e.stride == 0;
}

// View of a tensor as a matrix with parts as rectangles. A part with runs that are one row apart takes one or
// two rectangles, so that a small file cannot request much memory or time.
class Grid {
 public:
  Grid(std::span<const Elements> parts, int64_t numel) : width_(std::max<int64_t>(1, numel)), numel_(numel) {
    int64_t most = 1;
    for (const Elements& e : parts)
      if (const Runs r(e); r.count > most) most = r.count, width_ = r.stride;
    rows_ = ceil_div(numel, width_);
  }

  // False if there are too many runs at distances other than the width.
  bool add(const Elements& e) {
    constexpr int64_t kMostRuns = 1 << 16;
    const Runs r(e);
    if (r.count > 1 && r.stride == width_) return add_column(r), true;
    if ((runs_ += r.count > 1 ? r.count : 0) > kMostRuns) return false;
    for (int64_t i = 0; i < r.count; ++i) add_range(r.at(i));
    return true;
  }

  // First element, in row-major order, that no part or two parts have.
  struct Fault {
    int64_t element;
    bool twice;
  };
  std::optional<Fault> fault() {
    add_range({numel_, rows_ * width_});  // after the end of the last row
    std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) {
      return std::tie(a.row, a.begins) < std::tie(b.row, b.begins);
    });
    std::map<int64_t, int64_t> held;  // columns of the current row: end by begin
    int64_t width = 0;
    auto edge = edges_.begin();
    for (int64_t row = 0; row < rows_; row = edge == edges_.end() ? rows_ : edge->row) {
      for (; edge != edges_.end() && edge->row == row; ++edge) {
        width += edge->begins ? edge->columns.size() : -edge->columns.size();
        if (!edge->begins) {
          held.erase(edge->columns.begin);
          continue;
        }
        const auto [at, fresh] = held.emplace(edge->columns.begin, edge->columns.end);
        const auto next = std::next(at);
        if (!fresh || (at != held.begin() && std::prev(at)->second > edge->columns.begin))
          return Fault{row * width_ + edge->columns.begin, true};
        if (next != held.end() && next->first < edge->columns.end)
          return Fault{row * width_ + next->first, true};
      }
      if (width == width_) continue;
      int64_t column = 0;
      for (const auto& [begin, end] : held)
        if (begin == column) column = end;
      return Fault{row * width_ + column, false};
    }
    return {};
  }

 private:
  struct Edge {  // of a rectangle, along a row
    int64_t row;
    bool begins;  // otherwise the row is the one after its last
    Range columns;
  };
  void add(Range rows, Range columns) {
    if (rows.empty() || columns.empty()) return;
    edges_.push_back({rows.begin, true, columns});
    edges_.push_back({rows.end, false, columns});
  }
  void add_column(const Runs& r) {
    const int64_t row = r.begin / width_, column = r.begin % width_, end = column + r.run;
    add({row, row + r.count}, {column, std::min(end, width_)});
    add({row + 1, row + 1 + r.count}, {0, end - width_});  // of runs that continue in the next row
  }
  void add_range(Range elements) {
    const int64_t row = elements.begin / width_, column = elements.begin % width_;
    const int64_t last = elements.end / width_, end = elements.end % width_;
    if (row == last) return add({row, row + 1}, {column, end});
    add({row, row + 1}, {column, width_});
    add({row + 1, last}, {0, width_});
    add({last, last + 1}, {0, end});
  }

  int64_t width_, numel_, rows_ = 0, runs_ = 0;
  std::vector<Edge> edges_;
};

}  // namespace

void each_overlap(const Elements& wanted, Range window, const Elements& stored, const Overlap& overlap) {
  const Runs w(wanted), s(stored);
  for (int64_t i = w.run ? window.begin / w.run : 0; i < w.count && i * w.run < window.end; ++i) {
    const Range part = intersect(window, Range{i * w.run, (i + 1) * w.run});
    const int64_t to_tensor = w.at(i).begin - i * w.run;
    const Range want = part.shifted(to_tensor);
    for (int64_t j = s.after(want.begin); j < s.count && s.at(j).begin < want.end; ++j) {
      const Range both = intersect(want, s.at(j));
      if (!both.empty()) overlap(both.begin - to_tensor, j * s.run + both.begin - s.at(j).begin, both.size());
    }
  }
}

void require_each_once(std::span<const Elements> parts, int64_t numel, std::string_view tensor) {
  int64_t stored = 0;
  for (const Elements& e : parts) {
    require(is_part_of(e, numel), Exit::checkpoint,
            "elements [{}, {}), {} of every {}, exceed {}, which has {}", e.range.begin, e.range.end, e.run,
            e.stride, tensor, numel);
    if (__builtin_add_overflow(stored, e.numel(), &stored)) stored = INT64_MAX;
  }
  Grid grid(parts, numel);
  for (const Elements& e : parts)
    require(grid.add(e), Exit::checkpoint, "{} has too many pieces at different distances; save it again",
            tensor);
  if (const auto fault = grid.fault())
    fail(Exit::checkpoint, "{} of {} elements of {} are stored: element {} {}", stored, numel, tensor,
         fault->element, fault->twice ? "more than once" : "not at all");
}

}  // namespace cleave::checkpoint
