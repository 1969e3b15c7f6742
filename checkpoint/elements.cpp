#include "checkpoint/elements.h"

#include <vector>

namespace cleave::checkpoint {
namespace {

// Elements as equal runs at equal distances; a range is one run.
struct Runs {
  explicit Runs(const Elements& e)
      : begin(e.range.begin),
        run(e.stride ? e.run : e.range.size()),
        stride(e.stride ? e.stride : std::max<int64_t>(1, run)),
        count(run ? e.numel() / run : 0) {}
  Range at(int64_t i) const { return Range{0, run}.shifted(begin + i * stride); }
  // The first run that ends after this element of the whole tensor.
  int64_t after(int64_t element) const { return std::max<int64_t>(0, (element - begin - run) / stride); }
  int64_t begin, run, stride, count;
};

bool is_part_of(const Elements& e, int64_t numel) {
  const bool inside = 0 <= e.range.begin && e.range.begin < e.range.end && e.range.end <= numel;
  if (e.stride == 0) return inside && e.run == 0;
  return inside && 0 < e.run && e.run <= e.range.size() && e.run <= e.stride &&
         (e.range.size() - e.run) % e.stride == 0;
}

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
  int64_t stored = 0, count = 0;
  for (const Elements& e : parts) {
    require(is_part_of(e, numel), Exit::checkpoint,
            "elements [{}, {}), {} of every {}, are no part of {}, which has {}", e.range.begin, e.range.end,
            e.run, e.stride, tensor, numel);
    stored += e.numel(), count += Runs(e).count;
  }
  std::vector<Range> runs;
  runs.reserve(size_t(count));
  for (const Elements& e : parts)
    for (int64_t i = 0; i < Runs(e).count; ++i) runs.push_back(Runs(e).at(i));
  std::sort(runs.begin(), runs.end(), [](Range a, Range b) { return a.begin < b.begin; });
  runs.push_back({numel, numel});
  int64_t at = 0;
  for (const Range& r : runs) {
    require(r.begin == at, Exit::checkpoint, "{} of {} elements of {} are stored: element {} {}", stored,
            numel, tensor, std::min(at, r.begin), r.begin > at ? "not at all" : "more than once");
    at = r.end;
  }
}

}  // namespace cleave::checkpoint
