#include "checkpoint/pipeline_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/printable.h"

namespace cleave::checkpoint {
namespace {

// A name split at its first number: "model.layers.3.mlp.up_proj.weight" gives 3 and "mlp.up_proj.weight".
struct Numbered {
  int64_t number = 0;
  std::string rest;
};
std::optional<Numbered> numbered(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    const bool number = !word.empty() && word.size() < 10 &&
                        std::all_of(word.begin(), word.end(), [](char c) { return '0' <= c && c <= '9'; });
    if (number && end < name.size()) return Numbered{std::stoll(word), name.substr(end + 1)};
    begin = end + 1;
  }
  return {};
}

bool ends_like(const std::string& name, const std::string& end) {
  return name == end || name.ends_with("." + end);
}

size_t common_end(const std::string& a, const std::string& b) {
  return size_t(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
}

std::vector<int64_t> shape_in_file(const WeightName& name) {
  std::vector<int64_t> shape = name.shape;
  if (name.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

class Matching {
 public:
  Matching(const std::map<std::string, std::vector<int64_t>>& pipeline, const WeightNames& model,
           const std::string& where)
      : pipeline_(pipeline), where_(where) {
    for (const WeightName& name : model.tensors)
      if (const auto n = numbered(name.file_name)) {
        ends_.insert(n->rest);
        in_blocks_[n->number][n->rest] = &name;
      } else {
        (in_blocks_.empty() ? before_ : behind_).push_back(&name);
      }
    find_blocks();
  }

  std::map<std::string, std::string> take() {
    match_blocks();
    match(before_, [&](int64_t layer) { return layer < layers_.front(); });
    match(behind_, [&](int64_t layer) { return layer > layers_.back(); });
    for (const auto& [name, shape] : pipeline_)
      if (!found_.contains(name)) refuse(fmt::format("{} does not exist in the model", in_quotes(name)));
    return found_;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail(Exit::checkpoint,
         "{}: the parameters of the pipeline do not fit the model: {} (expected layers with the parameter "
         "names of the published model)",
         where_, why);
  }

  // Finds the pipeline layers that have a parameter of a block.
  void find_blocks() {
    std::set<int64_t> layers;
    for (const auto& [name, shape] : pipeline_)
      if (const auto n = numbered(name))
        if (std::any_of(ends_.begin(), ends_.end(), [&](auto& end) { return ends_like(n->rest, end); }))
          layers.insert(n->number);
    layers_.assign(layers.begin(), layers.end());
    if (layers_.size() != in_blocks_.size() || layers_.empty())
      refuse(fmt::format("{} of its layers look like blocks, but the model has {}", layers_.size(),
                         in_blocks_.size()));
  }

  void match_blocks() {
    for (const auto& [name, shape] : pipeline_) {
      const auto n = numbered(name);
      const auto layer = n ? std::lower_bound(layers_.begin(), layers_.end(), n->number) : layers_.end();
      if (layer == layers_.end() || *layer != n->number) continue;
      const auto& block = std::next(in_blocks_.begin(), layer - layers_.begin())->second;
      for (const auto& [end, wanted] : block)
        if (ends_like(n->rest, end)) take(name, shape, *wanted);
    }
  }

  // Matches by shape; among several, the name with the longest common ending.
  template <class Stands>
  void match(const std::vector<const WeightName*>& wanted, const Stands& stands) {
    for (const WeightName* want : wanted) {
      std::vector<std::pair<size_t, std::string>> fits;
      for (const auto& [name, shape] : pipeline_) {
        const auto n = numbered(name);
        if (!found_.contains(name) && shape == shape_in_file(*want) && (!n || stands(n->number)))
          fits.emplace_back(common_end(name, want->file_name), name);
      }
      std::sort(fits.rbegin(), fits.rend());
      if (fits.empty())
        refuse(fmt::format("no parameter matches {} [{}]", want->file_name,
                           fmt::join(shape_in_file(*want), ", ")));
      if (fits.size() > 1 && fits[0].first == fits[1].first)
        refuse(fmt::format("{} is ambiguous: {} or {}", want->file_name, in_quotes(fits[0].second),
                           in_quotes(fits[1].second)));
      take(fits[0].second, shape_in_file(*want), *want);
    }
  }

  void take(const std::string& name, const std::vector<int64_t>& shape, const WeightName& wanted) {
    if (shape != shape_in_file(wanted))
      refuse(fmt::format("{} has the shape [{}], but {} has [{}]", in_quotes(name), fmt::join(shape, ", "),
                         wanted.file_name, fmt::join(shape_in_file(wanted), ", ")));
    found_[name] = wanted.file_name;
  }

  const std::map<std::string, std::vector<int64_t>>& pipeline_;
  const std::string& where_;
  std::map<int64_t, std::map<std::string, const WeightName*>> in_blocks_;  // by number and end
  std::set<std::string> ends_;
  std::vector<const WeightName*> before_, behind_;
  std::vector<int64_t> layers_;  // pipeline layers that are blocks
  std::map<std::string, std::string> found_;
};

}  // namespace

std::map<std::string, std::string> published_names(
    const std::map<std::string, std::vector<int64_t>>& pipeline, const WeightNames& model,
    const std::string& where) {
  return Matching(pipeline, model, where).take();
}

}  // namespace cleave::checkpoint
