#include <algorithm>
#include <array>

#include "core/units.h"
#include "plan/job_plan.h"

namespace cleave::plan {
namespace {

constexpr int kWidth = 900, kLeft = 70, kStages = 8, kMicros = 64;

// Distinguishable with every common kind of colour vision (Okabe and Ito's palette).
constexpr std::array<const char*, kCategories> kColours = {"#0072B2", "#56B4E9", "#009E73", "#E69F00",
                                                           "#CC79A7", "#F0E442", "#D55E00", "#882255",
                                                           "#999999", "#000000", "#44AA99"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

std::string box(double x, double y, double width, double height, const char* fill, const std::string& title) {
  return fmt::format(
      "<rect x='{:.2f}' y='{:.2f}' width='{:.2f}' height='{:.2f}' fill='{}'><title>{}</title></rect>\n", x, y,
      std::max(0.0, width), std::max(0.0, height), fill, escaped(title));
}

std::string words(double x, double y, const std::string& text, const char* anchor = "start") {
  return fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='{}'>{}</text>\n", x, y, anchor, escaped(text));
}

std::string svg(double height, const std::string& inside) {
  return fmt::format("<svg viewBox='0 0 {} {:.0f}' role='img'>\n{}</svg>\n", kWidth, height, inside);
}

std::string legend(const std::vector<std::pair<std::string, const char*>>& entries) {
  std::string out = "<p class='legend'>";
  for (const auto& [name, colour] : entries)
    out += fmt::format("<span><i style='background:{}'></i>{}</span>", colour, escaped(name));
  return out + "</p>\n";
}

// Returns the ranks of the tables for at most kStages stages, including the first and the last.
std::vector<const RankPlan*> drawn_ranks(const JobPlan& plan) {
  const std::vector<const RankPlan*> all = largest_of_stages(plan);
  std::vector<const RankPlan*> out;
  const size_t n = std::min<size_t>(all.size(), kStages);
  for (size_t i = 0; i < n; ++i) out.push_back(all[n == 1 ? 0 : i * (all.size() - 1) / (n - 1)]);
  return out;
}

std::string drawn_of(const JobPlan& plan) {
  const size_t all = largest_of_stages(plan).size();
  return all <= kStages ? "" : fmt::format(" Of the {} stages, {} are drawn.", all, kStages);
}

// Returns round numbers of bytes from 0 up to `top`, at most five above 0.
std::vector<int64_t> round_ticks(int64_t top) {
  int64_t unit = 1;
  while (top / unit >= 1024) unit *= 1024;
  for (int64_t power = 1;; power *= 10)
    for (const int64_t step : {1 * power * unit, 2 * power * unit, 5 * power * unit})
      if (top / step <= 5) {
        std::vector<int64_t> out;
        for (int64_t at = 0; at <= top; at += step) out.push_back(at);
        return out;
      }
}

// Examples: "0", "512 B", "2 GiB". Ticks are whole numbers of a unit.
std::string tick_text(int64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && bytes % 1024 == 0 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return bytes == 0 ? "0" : fmt::format("{} {}", bytes, units[unit]);
}

std::string line(double x1, double x2, double y1, double y2, const char* kind) {
  return fmt::format("<line x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}' class='{}'/>\n", x1, x2, y1, y2,
                     kind);
}

// Draws shares of a step from left to right below `y`.
std::string step_axis(double y) {
  std::string out = line(kLeft, kWidth, y, y, "axis");
  for (const int percent : {0, 25, 50, 75, 100}) {
    const double x = kLeft + (kWidth - kLeft) * percent / 100.0;
    out += line(x, x, y, y + 4, "axis") + words(x, y + 16, fmt::format("{} %", percent),
                                                percent == 0     ? "start"
                                                : percent == 100 ? "end"
                                                                 : "middle");
  }
  return out + words(kLeft + (kWidth - kLeft) * 3 / 8.0, y + 16, "of the step's time", "middle");
}

// All memory is allocated before the first step. During a step only the used part of the activations changes:
// the frames of the micro-batches in flight.
std::string memory_of(const JobPlan& plan, const RankPlan& rank, double top) {
  constexpr double kHeight = 160, kAxis = 22;
  const std::vector<pipeline::Span>& spans = plan.timeline.spans[size_t(rank.place.pipe)];
  const int most = std::max(1, plan.timeline.peak_frames[size_t(rank.place.pipe)]);
  const double across = (kWidth - kLeft) / plan.timeline.makespan, up = (kHeight - 40) / top;
  std::string out = words(0, 12,
                          fmt::format("rank {}, stage {}: {} of device memory held", rank.ranks[0],
                                      rank.place.pipe, format_bytes(rank.memory.total(MemoryKind::device))));
  double base = kHeight - 10;
  for (const int64_t tick : round_ticks(int64_t(top)))
    out += line(kLeft - 4, kWidth, base - double(tick) * up, base - double(tick) * up, "grid") +
           words(kLeft - 8, base - double(tick) * up + 4, tick_text(tick), "end");
  for (int c = 0; c < kCategories; ++c) {
    const Category category{uint8_t(c)};
    int64_t bytes = rank.memory.at(MemoryKind::device, category);
    const bool frames = category == Category::activations;
    if (frames) bytes -= most * rank.frame_bytes;
    out += box(kLeft, base - double(bytes) * up, kWidth - kLeft, double(bytes) * up, kColours[size_t(c)],
               fmt::format("{}: {}", name_of(category), format_bytes(bytes)));
    base -= double(bytes) * up;
  }
  auto in_use = [&](double begin, double end, int in_flight, const std::string& what) {
    const int64_t bytes = in_flight * rank.frame_bytes;
    out += box(kLeft + begin * across, base - double(bytes) * up, (end - begin) * across, double(bytes) * up,
               kColours[size_t(Category::activations)],
               fmt::format("{}: {} in flight keep {}", what, in_flight, format_bytes(bytes)));
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    const pipeline::Span& s = spans[i];
    in_use(s.begin, s.end, s.frames,
           fmt::format("{} of micro-batch {}", pipeline::name_of(s.what.op), s.what.micro));
    if (i + 1 < spans.size() && spans[i + 1].begin > s.end)
      in_use(s.end, spans[i + 1].begin, std::min(s.frames, spans[i + 1].frames), "idle");
  }
  const double full = base - double(most * rank.frame_bytes) * up;
  out += line(kLeft, kWidth, full, full, "limit") + step_axis(kHeight - 10);
  return svg(kHeight + kAxis, out);
}

std::string memory(const JobPlan& plan) {
  std::vector<std::pair<std::string, const char*>> names;
  double top = 1;
  for (const RankPlan& r : plan.ranks) top = std::max(top, double(r.memory.total(MemoryKind::device)));
  for (int c = 0; c < kCategories; ++c)
    if (std::any_of(plan.ranks.begin(), plan.ranks.end(),
                    [&](auto& r) { return r.memory.at(MemoryKind::device, Category(c)) > 0; }))
      names.emplace_back(name_of(Category(c)), kColours[size_t(c)]);
  std::string out =
      "<h2>Device memory over a step</h2>\n<p>Everything is allocated before the first step (the dashed "
      "line); the height shows the memory in use, on the rank of each stage that needs the most." +
      drawn_of(plan) + "</p>\n" + legend(names);
  for (const RankPlan* r : drawn_ranks(plan)) out += memory_of(plan, *r, top);
  return out;
}

const char* colour_of(pipeline::Op op) {
  switch (op) {
    case pipeline::Op::forward:
      return "#56B4E9";
    case pipeline::Op::backward_input:
      return "#E69F00";
    case pipeline::Op::backward_weight:
      return "#009E73";
    default:
      return "#D55E00";
  }
}

std::string chart(const JobPlan& plan) {
  const pipeline::Simulation& t = plan.timeline;
  const size_t stages = std::min<size_t>(t.spans.size(), 64);
  constexpr double kRow = 20;
  const double across = (kWidth - kLeft) / t.makespan;
  std::string out;
  std::vector<std::pair<std::string, const char*>> names;
  for (const pipeline::Op op : {pipeline::Op::forward, pipeline::Op::backward, pipeline::Op::backward_input,
                                pipeline::Op::backward_weight})
    if (std::any_of(t.spans[0].begin(), t.spans[0].end(),
                    [&](const pipeline::Span& s) { return s.what.op == op; }))
      names.emplace_back(pipeline::name_of(op), colour_of(op));
  names.emplace_back("idle", "#eee");
  for (size_t r = 0; r < stages; ++r) {
    out += words(kLeft - 6, double(r) * kRow + 14, fmt::format("stage {}", r), "end");
    out += box(kLeft, double(r) * kRow, kWidth - kLeft, kRow - 2, "#eee", "idle");
    for (const pipeline::Span& s : t.spans[r]) {
      const double x = kLeft + s.begin * across, width = (s.end - s.begin) * across;
      out += box(x, double(r) * kRow, width - 0.5, kRow - 2, colour_of(s.what.op),
                 fmt::format("{} of micro-batch {}, chunk {}", pipeline::name_of(s.what.op), s.what.micro,
                             s.what.chunk));
      if (width > 16 && s.what.micro < kMicros)
        out += words(x + width / 2, double(r) * kRow + 14, std::to_string(s.what.micro), "middle");
    }
  }
  return "<h2>One step of the pipeline</h2>\n" +
         fmt::format("<p class='lines'>{}</p>\n",
                     escaped(plan.pipeline.empty() ? "one stage" : plan.pipeline)) +
         legend(names) + svg(double(stages) * kRow + 24, out + step_axis(double(stages) * kRow));
}

std::string traffic(const JobPlan& plan) {
  struct Bar {
    std::string name;
    int64_t bytes;
  };
  std::vector<Bar> bars;
  int64_t top = 1;
  for (const RankPlan* r : drawn_ranks(plan))
    for (const GroupTraffic& t : r->sent)
      for (int c = 0; c < comm::kCollectives; ++c)
        if (const int64_t sent = t.bytes[comm::Collective(c)]) {
          bars.push_back(
              {fmt::format("rank {}: {}, {}{}", r->ranks[0], name_of(t.group),
                           comm::name_of(comm::Collective(c)), t.between_nodes ? ", between nodes" : ""),
               sent});
          top = std::max(top, sent);
        }
  // Omits agreement on single numbers; the tables have it.
  std::erase_if(bars, [&](const Bar& b) { return b.bytes < top / 10000; });
  if (bars.empty()) return "<h2>Sent in a step</h2>\n<p>Nothing is sent.</p>\n";
  constexpr double kRow = 20, kName = 330;
  const double end = double(bars.size()) * kRow, scale = (kWidth - kName - 100) / double(top);
  std::string out;
  for (const int64_t tick : round_ticks(top)) {
    const double x = kName + double(tick) * scale;
    out += line(x, x, 0, end + 4, "grid") + words(x, end + 16, tick_text(tick), "middle");
  }
  out += words(kName - 6, end + 16, "sent by the rank in one step", "end");
  for (size_t b = 0; b < bars.size(); ++b) {
    const double width = double(bars[b].bytes) * scale, y = double(b) * kRow;
    out += words(kName - 6, y + 14, bars[b].name, "end");
    out += box(kName, y, width, kRow - 4, "#0072B2", fmt::format("{} bytes", bars[b].bytes));
    out += words(kName + width + 6, y + 14, format_bytes(bars[b].bytes));
  }
  return "<h2>Sent in a step</h2>\n<p>By group and collective, for the same ranks; values below a "
         "ten-thousandth of the largest are left out." +
         drawn_of(plan) + "</p>\n" + svg(end + 24, out);
}

}  // namespace

std::string to_html(const JobPlan& plan) {
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Plan of {0}</title>\n<style>\n"
      "body{{font:15px/1.5 sans-serif;max-width:{1}px;margin:2em auto;padding:0 1em;color:#222}}\n"
      "svg{{width:100%;font:12px sans-serif;display:block;margin-bottom:8px}} "
      "pre{{overflow-x:auto;font-size:12px;background:#f6f6f6;"
      "padding:1em}} .lines{{white-space:pre-line}}\n.limit{{stroke:#222;stroke-dasharray:4 3}} "
      ".axis{{stroke:#888}} .grid{{stroke:#ddd}} .legend "
      "span{{margin-right:1.2em}}\n"
      ".legend i{{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em}}\n"
      "</style></head><body>\n<h1>{0} on {2} ranks</h1>\n<p>{3}; {4} parameters, "
      "{5:.4g} TFLOP a step, pipeline idle {6:.1f} %</p>\n{7}{8}{9}<h2>Tables</h2>\n<pre>{10}</pre>\n"
      "</body></html>\n",
      escaped(plan.model), kWidth, plan.mesh.size(), name_of(plan.mesh), format_count(plan.params),
      plan.flops / 1e12, plan.idle_share * 100, memory(plan), chart(plan), traffic(plan),
      escaped(format(plan)));
}

}  // namespace cleave::plan
