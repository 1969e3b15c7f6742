#include "pipeline/partition.h"

#include <regex.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <sstream>

#include "core/units.h"

namespace cleave::pipeline {
namespace {

std::vector<Range> uniform(int64_t layers, int64_t pieces) {
  std::vector<Range> out;
  int64_t at = 0;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t n = layers / pieces + (i < layers % pieces ? 1 : 0);
    out.push_back({at, at + n});
    at += n;
  }
  return out;
}

// Finds the division that minimizes the sum of f(weight) over pieces, with no piece above `most`, by dynamic
// programming over (pieces, layers): O(layers^2 * pieces).
class Cuts {
 public:
  // weights: of the layers; extra: of the head, in the last piece.
  Cuts(const std::vector<double>& weights, double extra, int pieces)
      : n_(int(weights.size())), pieces_(pieces), extra_(extra), sums_(weights.size() + 1) {
    std::partial_sum(weights.begin(), weights.end(), sums_.begin() + 1);
  }

  // Returns the minimum of the largest piece.
  double least_maximum() {
    return solve([](double so_far, double piece) { return std::max(so_far, piece); });
  }
  std::vector<Range> best(double most) {
    solve([most](double so_far, double piece) {
      return piece <= most * (1 + 1e-12) ? so_far + piece * piece : std::numeric_limits<double>::infinity();
    });
    std::vector<Range> out{size_t(pieces_)};
    for (int k = pieces_, end = n_; k > 0; --k) {
      const int begin = from_[size_t(k)][size_t(end)];
      out[size_t(k) - 1] = {begin, end};
      end = begin;
    }
    return out;
  }

 private:
  template <class Join>
  double solve(Join join) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    std::vector<std::vector<double>> best(size_t(pieces_) + 1, std::vector<double>(size_t(n_) + 1, kNever));
    from_.assign(size_t(pieces_) + 1, std::vector<int>(size_t(n_) + 1, 0));
    best[0][0] = 0;
    for (int k = 1; k <= pieces_; ++k)
      for (int end = k; end <= n_ - (pieces_ - k); ++end)
        for (int begin = k - 1; begin < end; ++begin) {
          const double piece = sums_[size_t(end)] - sums_[size_t(begin)] + (k == pieces_ ? extra_ : 0);
          const double value = join(best[size_t(k) - 1][size_t(begin)], piece);
          if (value < best[size_t(k)][size_t(end)])
            best[size_t(k)][size_t(end)] = value, from_[size_t(k)][size_t(end)] = begin;
        }
    return best[size_t(pieces_)][size_t(n_)];
  }

  int n_, pieces_;
  double extra_;
  std::vector<double> sums_;
  std::vector<std::vector<int>> from_;
};

std::vector<Range> listed(const std::string& method, int64_t layers, int pieces) {
  std::vector<Range> out;
  std::istringstream in(method);
  int64_t at = 0;
  bool good = !method.ends_with(',');
  for (std::string item; std::getline(in, item, ',');) {
    int64_t n = 0;
    const char* end = item.data() + item.size();
    good = good && std::from_chars(item.data(), end, n).ptr == end && n >= 1 && n <= layers;
    out.push_back({at, at + n});
    at += n;
  }
  require(
      good && int(out.size()) == pieces && at == layers, Exit::usage,
      "pipeline.partition_method \"{}\" must list {} numbers of layers, each at least 1, that add up to {}",
      method, pieces, layers);
  return out;
}

std::vector<double> weights_of(std::span<const LayerCost> layers, const std::string& method) {
  std::vector<double> weights;
  if (method.starts_with("type:")) {
    // Uses POSIX, because libstdc++ compiles its expressions through a cache shared by all threads.
    regex_t pattern;
    const int error = regcomp(&pattern, method.substr(5).c_str(), REG_EXTENDED | REG_ICASE | REG_NOSUB);
    char reason[128] = {};
    if (error) regerror(error, &pattern, reason, sizeof(reason));
    require(error == 0, Exit::usage, "pipeline.partition_method \"{}\": invalid regular expression: {}",
            method, reason);
    for (const LayerCost& l : layers)
      weights.push_back(regexec(&pattern, l.name.c_str(), 0, nullptr, 0) == 0 ? 1 : 0);
    regfree(&pattern);
    require(std::accumulate(weights.begin(), weights.end(), 0.0) > 0, Exit::usage,
            "pipeline.partition_method \"{}\" matches no layer; they are called {}, ..., {}", method,
            layers.front().name, layers.back().name);
    return weights;
  }
  for (const LayerCost& l : layers) weights.push_back(method == "parameters" ? double(l.params) : work_of(l));
  return weights;
}

// Describes layers without split backward, which compute both parts at once.
std::string describe_split(std::span<const LayerCost> layers) {
  std::string whole;
  int64_t count = 0;
  for (const LayerCost& l : layers)
    if (!l.splits && ++count <= 3) whole += (whole.empty() ? "" : ", ") + l.name;
  if (count == 0) return "";
  const auto n = int64_t(layers.size());
  if (count == n)
    return "; no layer of this model can split its backward, so the schedule gains nothing over 1f1b";
  return fmt::format("; {} of {} layers cannot split their backward and do it whole ({}{})", count, n, whole,
                     count > 3 ? ", ..." : "");
}

}  // namespace

double work_of(const LayerCost& l) { return l.flops + 10 * l.bytes; }

std::vector<Range> partition_layers(std::span<const LayerCost> layers, const LayerCost& head, int pieces,
                                    const std::string& method) {
  const auto n = int64_t(layers.size());
  if (pieces == 1) return {{0, n}};
  require(pieces <= n, Exit::usage,
          "pipeline.stages * pipeline.virtual_stages: too many pieces (got {} for {} layers, expected at "
          "most {}); each piece needs a layer",
          pieces, n, n);
  if (method == "uniform") return uniform(n, pieces);
  if (!method.empty() && std::isdigit(static_cast<unsigned char>(method[0])))
    return listed(method, n, pieces);
  const bool by_work = method == "balanced", by_params = method == "parameters";
  require(by_work || by_params || method.starts_with("type:"), Exit::usage,
          "pipeline.partition_method \"{}\": use balanced, parameters, uniform, type:REGEX, or numbers of "
          "layers such "
          "as \"3,4,4,3\"",
          method);
  const double extra = by_work ? work_of(head) : by_params ? double(head.params) : 0;
  Cuts cuts(weights_of(layers, method), extra, pieces);
  return cuts.best(cuts.least_maximum());
}

std::vector<double> work_of_pieces(std::span<const LayerCost> layers, const LayerCost& head,
                                   std::span<const Range> pieces) {
  std::vector<double> work;
  for (const Range& r : pieces) {
    work.push_back(0);
    for (int64_t l = r.begin; l < r.end; ++l) work.back() += work_of(layers[size_t(l)]);
  }
  work.back() += work_of(head);
  const double mean = std::accumulate(work.begin(), work.end(), 0.0) / double(work.size());
  for (double& w : work) w = mean > 0 ? w / mean : 1;
  return work;
}

std::vector<double> split_shares(std::span<const LayerCost> layers, const LayerCost& head,
                                 std::span<const Range> pieces) {
  std::vector<double> shares;
  for (const Range& r : pieces) {
    double all = &r == &pieces.back() ? work_of(head) : 0, split = 0;
    for (int64_t l = r.begin; l < r.end; ++l) {
      const LayerCost& layer = layers[size_t(l)];
      all += work_of(layer), split += layer.splits ? work_of(layer) : 0;
    }
    shares.push_back(all > 0 ? split / all : 1);
  }
  return shares;
}

std::string format_pipeline(const std::string& schedule, const ScheduleShape& shape,
                            std::span<const LayerCost> layers, const LayerCost& head,
                            std::span<const Range> pieces, const Simulation& simulated) {
  const auto& weights = simulated.peak_weights;
  const bool splits_backwards =
      std::any_of(weights.begin(), weights.end(), [](int waiting) { return waiting > 0; });
  const std::vector<double> work = work_of_pieces(layers, head, pieces);
  std::string text =
      fmt::format("pipeline: {} stages, {} micro-batch{}, {}; expected idle share {:.1f} %", shape.stages,
                  shape.micros, shape.micros == 1 ? "" : "es", schedule, 100 * simulated.idle_share());
  if (shape.micros < shape.stages)
    text += fmt::format(" (fewer micro-batches than stages: raise gradient_accumulation_steps to {} or more)",
                        shape.stages);
  if (splits_backwards) text += describe_split(layers);
  for (int r = 0; r < shape.stages; ++r) {
    int64_t params = 0;
    double share = 0;
    std::string names;
    for (int c = 0; c < shape.chunks; ++c) {
      const int piece = shape.piece(r, c);
      const Range& range = pieces[size_t(piece)];
      for (int64_t l = range.begin; l < range.end; ++l) params += layers[size_t(l)].params;
      share += work[size_t(piece)] / shape.pieces();
      const std::string &first = layers[size_t(range.begin)].name, &last = layers[size_t(range.end) - 1].name;
      names += (names.empty() ? "" : " + ") + (range.size() == 1 ? first : first + ".." + last);
      if (piece == shape.pieces() - 1) names += " + head", params += head.params;
    }
    text += fmt::format("\n  stage {} has {} ({} parameters, {:.0f} % of the work)", r, names,
                        format_count(params), 100 * share);
  }
  return text;
}

}  // namespace cleave::pipeline
