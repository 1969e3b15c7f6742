#include "app/run/end_lines.h"

#include <fmt/format.h>

#include "launcher/shell_words.h"
#include "monitor/progress.h"

namespace cleave::app {

std::vector<config::NamedValue> end_lines(const EndFacts& facts, const Best& best,
                                          const RunOptions& options) {
  std::vector<config::NamedValue> out;
  if (facts.steps > 0) out.push_back({"loss", fmt::format("{:.6g} after step {}", facts.loss, facts.step)});
  if (best.step() >= 0)
    out.push_back(
        {"best", fmt::format("validation loss {:.6g} after step {}{}", best.loss(), best.step(),
                             options.keep_best ? fmt::format("; {}/best names its checkpoint", options.output)
                                               : "")});
  if (facts.steps > 0) {
    out.push_back({"time", fmt::format("{} for {} step{}", monitor::format_duration(facts.seconds),
                                       facts.steps, facts.steps == 1 ? "" : "s")});
    out.push_back({"throughput", fmt::format("{} tokens/s", monitor::format_rate(double(facts.tokens) /
                                                                                 facts.step_seconds))});
  }
  if (options.output.empty()) return out;
  out.push_back({"output", options.output});
  const bool early = best.out_of_patience();
  if (facts.stopped || (facts.step < options.steps && !early)) {
    out.push_back({"next", options.resume == "never" ? "run the same command with --resume auto to resume"
                                                     : "run the same command again to resume"});
    return out;
  }
  const std::string folder = launcher::shell_quoted(options.output);
  if (facts.has_tokenizer) out.push_back({"next", fmt::format("cleave generate {}", folder)});
  out.push_back({"next", fmt::format("cleave export {} OUT", folder)});
  if (!early && options.resume != "never")
    out.push_back({"next", fmt::format("run the same command with more --{} to continue",
                                       options.epochs ? "epochs" : "steps")});
  return out;
}

}  // namespace cleave::app
