#include <algorithm>
#include <array>

#include "core/units.h"
#include "plan/job_plan.h"

namespace cleave {
namespace {

constexpr int kWidth = 900, kLeft = 70, kStages = 8, kMicros = 64;

// Distinguishable with every common kind of colour vision (Okabe and Ito's palette).
constexpr std::array<const char*, kCategories> kColours = {"#0072B2", "#56B4E9", "#009E73", "#E69F00",
                                                           "#CC79A7", "#F0E442", "#D55E00", "#999999"};

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

// The first rank of each of at most kStages stages, first and last among them.
std::vector<const RankPlan*> shown_ranks(const JobPlan& plan) {
  std::vector<const RankPlan*> first;
  for (const RankPlan& r : plan.ranks)
    if (std::none_of(first.begin(), first.end(), [&](auto* f) { return f->place.pipe == r.place.pipe; }))
      first.push_back(&r);
  std::vector<const RankPlan*> out;
  const size_t n = std::min<size_t>(first.size(), kStages);
  for (size_t i = 0; i < n; ++i) out.push_back(first[n == 1 ? 0 : i * (first.size() - 1) / (n - 1)]);
  return out;
}

// Everything is allocated before the first step. What changes during one is how much of the activations is
// in use: the frames of the micro-batches in flight.
std::string memory_of(const JobPlan& plan, const RankPlan& rank, double top) {
  constexpr double kHeight = 160;
  const std::vector<Span>& spans = plan.timeline.spans[size_t(rank.place.pipe)];
  const int most = std::max(1, plan.timeline.peak_frames[size_t(rank.place.pipe)]);
  const double across = (kWidth - kLeft) / plan.timeline.makespan, up = (kHeight - 40) / top;
  std::string out = words(0, 12,
                          fmt::format("rank {}, stage {}: {}", rank.ranks[0], rank.place.pipe,
                                      format_bytes(rank.memory.total(MemoryKind::device))));
  double base = kHeight - 10;
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
    const Span& s = spans[i];
    in_use(s.begin, s.end, s.frames, fmt::format("{} of micro-batch {}", name_of(s.what.op), s.what.micro));
    if (i + 1 < spans.size() && spans[i + 1].begin > s.end)
      in_use(s.end, spans[i + 1].begin, std::min(s.frames, spans[i + 1].frames), "idle");
  }
  const double full = base - double(most * rank.frame_bytes) * up;
  out += fmt::format("<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' class='limit'/>\n", kLeft, kWidth, full,
                     full);
  out += words(kLeft - 6, full + 4, "held", "end") + words(kLeft - 6, kHeight - 8, "0", "end");
  return svg(kHeight, out);
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
      "<h2>Device memory over a step</h2>\n<p>Everything is allocated before the first step (the "
      "line); the height shows what is in use.</p>\n" +
      legend(names);
  for (const RankPlan* r : shown_ranks(plan)) out += memory_of(plan, *r, top);
  return out;
}

const char* colour_of(Op op) {
  switch (op) {
    case Op::forward:
      return "#56B4E9";
    case Op::backward_input:
      return "#E69F00";
    case Op::backward_weight:
      return "#009E73";
    default:
      return "#D55E00";
  }
}

std::string chart(const JobPlan& plan) {
  const Simulation& t = plan.timeline;
  const size_t stages = std::min<size_t>(t.spans.size(), 64);
  constexpr double kRow = 20;
  const double across = (kWidth - kLeft) / t.makespan;
  std::string out;
  std::vector<std::pair<std::string, const char*>> names;
  for (const Op op : {Op::forward, Op::backward, Op::backward_input, Op::backward_weight})
    if (std::any_of(t.spans[0].begin(), t.spans[0].end(), [&](const Span& s) { return s.what.op == op; }))
      names.emplace_back(name_of(op), colour_of(op));
  names.emplace_back("idle", "#eee");
  for (size_t r = 0; r < stages; ++r) {
    out += words(kLeft - 6, double(r) * kRow + 14, fmt::format("stage {}", r), "end");
    out += box(kLeft, double(r) * kRow, kWidth - kLeft, kRow - 2, "#eee", "idle");
    for (const Span& s : t.spans[r]) {
      const double x = kLeft + s.begin * across, width = (s.end - s.begin) * across;
      out +=
          box(x, double(r) * kRow, width - 0.5, kRow - 2, colour_of(s.what.op),
              fmt::format("{} of micro-batch {}, chunk {}", name_of(s.what.op), s.what.micro, s.what.chunk));
      if (width > 16 && s.what.micro < kMicros)
        out += words(x + width / 2, double(r) * kRow + 14, std::to_string(s.what.micro), "middle");
    }
  }
  return "<h2>One step of the pipeline</h2>\n" +
         fmt::format("<p class='lines'>{}</p>\n",
                     escaped(plan.pipeline.empty() ? "one stage" : plan.pipeline)) +
         legend(names) + svg(double(stages) * kRow, out);
}

std::string traffic(const JobPlan& plan) {
  struct Bar {
    std::string name;
    int64_t bytes;
  };
  std::vector<Bar> bars;
  int64_t top = 1;
  for (const RankPlan* r : shown_ranks(plan))
    for (const GroupTraffic& t : r->sent)
      for (int c = 0; c < kCollectives; ++c)
        if (const int64_t sent = t.bytes[Collective(c)]) {
          bars.push_back({fmt::format("rank {}: {}, {}{}", r->ranks[0], t.group, name_of(Collective(c)),
                                      t.between_nodes ? ", between nodes" : ""),
                          sent});
          top = std::max(top, sent);
        }
  // Single numbers that are agreed upon are in the tables.
  std::erase_if(bars, [&](const Bar& b) { return b.bytes < top / 10000; });
  if (bars.empty()) return "<h2>Sent in a step</h2>\n<p>Nothing is sent.</p>\n";
  constexpr double kRow = 20, kName = 330;
  std::string out;
  for (size_t b = 0; b < bars.size(); ++b) {
    const double width = (kWidth - kName - 100) * double(bars[b].bytes) / double(top), y = double(b) * kRow;
    out += words(kName - 6, y + 14, bars[b].name, "end");
    out += box(kName, y, width, kRow - 4, "#0072B2", fmt::format("{} bytes", bars[b].bytes));
    out += words(kName + width + 6, y + 14, format_bytes(bars[b].bytes));
  }
  return "<h2>Sent in a step</h2>\n<p>By group and collective, for one rank a stage; what is below a "
         "ten-thousandth of "
         "the largest is in the tables only.</p>\n" +
         svg(double(bars.size()) * kRow, out);
}

}  // namespace

std::string to_html(const JobPlan& plan) {
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Plan of {0}</title>\n<style>\n"
      "body{{font:15px/1.5 sans-serif;max-width:{1}px;margin:2em auto;padding:0 1em;color:#222}}\n"
      "svg{{width:100%;font:12px sans-serif;display:block;margin-bottom:8px}} "
      "pre{{overflow-x:auto;background:#f6f6f6;"
      "padding:1em}} .lines{{white-space:pre-line}}\n.limit{{stroke:#222;stroke-dasharray:4 3}} .legend "
      "span{{margin-right:1.2em}}\n"
      ".legend i{{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em}}\n"
      "</style></head><body>\n<h1>{0} on {2} ranks</h1>\n<p>pipe {3} x data {4} x sequence {5} x tensor {6}; "
      "{7} "
      "parameters, "
      "{8:.4g} TFLOP a step, pipeline idle {9:.1f} %</p>\n{10}{11}{12}<h2>Tables</h2>\n<pre>{13}</pre>\n"
      "</body></html>\n",
      escaped(plan.model), kWidth, plan.mesh.size(), plan.mesh.pipe, plan.mesh.data, plan.mesh.sequence,
      plan.mesh.tensor, format_count(plan.params), plan.flops / 1e12, plan.idle_share * 100, memory(plan),
      chart(plan), traffic(plan), escaped(format(plan)));
}

}  // namespace cleave
