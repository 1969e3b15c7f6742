#include "monitor/layer_profile.h"

#include <algorithm>
#include <map>

#include "core/units.h"

namespace cleave::monitor {
namespace {

double time_of(const LayerRow& r) { return r.forward_ms + r.backward_ms; }

std::string kind_of(const std::string& name) {
  std::string kind;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit)
      kind += c;
    else if (!kind.ends_with('*'))
      kind += '*';
  }
  return kind;
}

std::string row_text(const LayerRow& r, const LayerRow& all) {
  const auto share = [](double part, double whole) { return whole > 0 ? 100 * part / whole : 0; };
  const double ms = time_of(r);
  return fmt::format("{:<28} {:>9} {:>6.1f}% {:>10.3f} {:>6.1f}% {:>10.2f} {:>10.2f} {:>6.1f}% {:>9.3f}\n",
                     r.name, format_count(r.params), share(double(r.params), double(all.params)),
                     r.flops / 1e9, share(r.flops, all.flops), r.forward_ms, r.backward_ms,
                     share(ms, time_of(all)), ms > 0 ? r.flops / ms / 1e9 : 0);
}

void add(LayerRow& to, const LayerRow& r) {
  to.params += r.params, to.flops += r.flops, to.forward_ms += r.forward_ms, to.backward_ms += r.backward_ms;
}

std::string header() {
  return fmt::format("{:<28} {:>9} {:>7} {:>10} {:>7} {:>10} {:>10} {:>7} {:>9}\n", "layer", "params",
                     "share", "GFLOP", "share", "fwd (ms)", "bwd (ms)", "share", "TFLOP/s");
}

// One line with the `top` kinds by a measure.
template <class Measure, class Show>
std::string leaders(const char* what, std::vector<LayerRow> kinds, int top, Measure measure, Show show) {
  std::stable_sort(kinds.begin(), kinds.end(),
                   [&](const LayerRow& a, const LayerRow& b) { return measure(a) > measure(b); });
  std::string text;
  for (int i = 0; i < std::min(top, int(kinds.size())); ++i)
    text += fmt::format("{}{} ({})", i ? ", " : "", kinds[size_t(i)].name, show(kinds[size_t(i)]));
  return fmt::format("most {}: {}\n", what, text);
}

}  // namespace

void LayerTimes::see(const TraceEvent& e) {
  if (e.layer < 0 || 2 * size_t(e.layer) + 1 >= ms_.size()) return;
  const bool forward = std::string_view(e.category) == "forward";
  ms_[2 * size_t(e.layer) + (forward ? 0 : 1)] += (e.end_us - e.begin_us) / 1e3;
}

std::string format_profile(const std::vector<LayerRow>& rows, const std::vector<std::string>& facts,
                           double step_ms, const ProfileOptions& options) {
  LayerRow all{.name = "all layers"};
  std::map<std::string, LayerRow> by_kind;
  for (const LayerRow& r : rows) {
    add(all, r);
    LayerRow& kind = by_kind[kind_of(r.name)];
    kind.name = kind_of(r.name);
    add(kind, r);
  }
  std::string text = "profile of one training step\n";
  for (const std::string& fact : facts) text += "  " + fact + "\n";
  text += fmt::format("  step: {:.2f} ms; the layers of a rank compute {:.2f} ms\n", step_ms, time_of(all));
  text += header();
  if (options.layers)
    for (const LayerRow& r : rows) text += row_text(r, all);
  text += row_text(all, all);
  if (options.top <= 0) return text;
  std::vector<LayerRow> kinds;
  for (const auto& [name, row] : by_kind) kinds.push_back(row);
  text += leaders(
      "parameters", kinds, options.top, [](const LayerRow& r) { return double(r.params); },
      [](const LayerRow& r) { return format_count(r.params); });
  text += leaders(
      "arithmetic", kinds, options.top, [](const LayerRow& r) { return r.flops; },
      [](const LayerRow& r) { return fmt::format("{:.3f} GFLOP", r.flops / 1e9); });
  text += leaders("time", kinds, options.top, time_of,
                  [](const LayerRow& r) { return fmt::format("{:.2f} ms", time_of(r)); });
  return text;
}

}  // namespace cleave::monitor
