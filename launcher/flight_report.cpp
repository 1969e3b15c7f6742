#include "launcher/flight_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "core/printable.h"
#include "launcher/launch.h"

namespace cleave::launcher {
namespace {

using Record = FlightRecord;
using Call = FlightRecord::Call;

constexpr size_t kFrames = 16;  // printed per thread, unless all are asked for
constexpr int kPythonLines = 40;
constexpr int64_t kBriefly = 1'000'000;  // a shorter wait is normal in a record of a running job
constexpr size_t kMostCalls = 4;         // printed per rank

bool crashed(const Record& r) { return r.reason.starts_with("SIG") && r.reason != "SIGQUIT"; }

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string operands(const Call& c) {
  if (c.op == "barrier") return c.op;
  return fmt::format("{}{} of {} {}", c.op, c.by == "max" ? " by max" : "", c.count, c.type);
}

std::string describe(const Record& r, const Call& c) {
  std::string text = operands(c);
  if (c.op == "send") text += fmt::format(" to rank {}", c.peer);
  if (c.op == "recv" || (c.op == "broadcast" && c.peer >= 0)) text += fmt::format(" from rank {}", c.peer);
  if (!c.what.empty()) text += " (" + c.what + ")";
  text += fmt::format(", call {}", c.number);
  if (c.group >= 0) text += fmt::format(" of group '{}'", r.groups[size_t(c.group)].name);
  return text + (c.phase.empty() ? "" : ", " + c.phase);
}

double seconds(int64_t us) { return double(std::max<int64_t>(0, us)) / 1e6; }

std::string line_of(const Record& r) {
  std::vector<std::string> running;
  const Call* last = nullptr;
  for (const Call& c : r.calls) {
    if (c.running())
      running.push_back(fmt::format("{}, for {:.1f} s", describe(r, c), seconds(r.time_us - c.entered_us)));
    else if (!last || c.finished_us > last->finished_us)
      last = &c;
  }
  if (running.size() > kMostCalls) running.erase(running.begin(), running.end() - kMostCalls);
  if (!running.empty()) return fmt::format("in {}", fmt::join(running, "; in "));
  if (!last) return "no calls yet";
  return fmt::format("in no call; last: {}, finished {:.1f} s before", describe(r, *last),
                     seconds(r.time_us - last->finished_us));
}

// Records and groups of the ranks of one group, by rank of the world.
struct InGroup {
  std::map<int, std::pair<const Record*, const Record::Group*>> members;
};

// The running collective of a rank in a group; null if it is in none.
const Call* running_in(const Record& r, const Record::Group& group) {
  for (const Call& c : r.calls)
    if (c.running() && !c.is_message() && c.group >= 0 && r.groups[size_t(c.group)] == group) return &c;
  return nullptr;
}

bool same_operands(const Call& a, const Call& b) {
  return operands(a) == operands(b) && (a.op != "broadcast" || a.peer == b.peer);
}

struct Found {
  std::vector<std::string> lines;
  std::set<int> missing, differ;
};

void compare_group(const InGroup& group, Found& found) {
  std::vector<int> waiting;
  const Call* newest = nullptr;
  const Record* of = nullptr;
  for (const auto& [rank, member] : group.members)
    if (const Call* c = running_in(*member.first, *member.second);
        c && (!newest || c->number > newest->number))
      newest = c, of = member.first;
  if (!newest) return;
  if (of->reason == "SIGQUIT" && of->time_us - newest->entered_us < kBriefly) return;
  std::vector<std::string> late;
  for (const auto& [rank, member] : group.members) {
    const Call* c = running_in(*member.first, *member.second);
    if (c && c->number == newest->number) {
      waiting.push_back(rank);
      if (same_operands(*c, *newest)) continue;
      found.lines.push_back(fmt::format("ranks {} and {} differ: {} and {}", of->rank, rank,
                                        describe(*of, *newest), describe(*member.first, *c)));
      found.differ.insert({of->rank, rank});
    } else if (member.second->entered < newest->number) {
      late.push_back(fmt::format("rank {} is missing: its last call in group '{}' is {}", rank,
                                 member.second->name, member.second->entered));
      found.missing.insert(rank);
    }
  }
  if (late.empty()) return;
  for (std::string& line : late)
    found.lines.push_back(fmt::format("{}; {} wait{} in {}", line, ranks_text(waiting),
                                      waiting.size() == 1 ? "s" : "", describe(*of, *newest)));
}

// A receive that still waits.
void compare_messages(const Record& r, Found& found) {
  for (const Call& c : r.calls) {
    if (!c.running() || c.op != "recv" || c.group < 0) continue;
    if (r.reason == "SIGQUIT" && r.time_us - c.entered_us < kBriefly) continue;
    const Record::Group& group = r.groups[size_t(c.group)];
    if (c.peer < 0 || c.peer >= int(group.ranks.size())) continue;
    const int sender = group.ranks[size_t(c.peer)];
    found.lines.push_back(
        fmt::format("rank {} waits for a message of rank {}: {}", r.rank, sender, describe(r, c)));
    found.missing.insert(sender);
  }
}

Found compare(const std::vector<Record>& records) {
  Found found;
  std::map<std::pair<std::string, std::vector<int>>, InGroup> groups;
  for (const Record& r : records)
    for (const Record::Group& g : r.groups) groups[{g.name, g.ranks}].members[r.rank] = {&r, &g};
  for (const auto& [key, group] : groups) compare_group(group, found);
  for (const Record& r : records) compare_messages(r, found);
  return found;
}

// Ranks in the call that the fewest ranks are in: of more than two ranks that wait for each other, those have
// left the path of the others. Empty if several calls have as few.
std::set<int> minority(const std::vector<Record>& records) {
  std::map<std::string, std::set<int>> by_call;
  for (const Record& r : records)
    for (const Call& c : r.calls)
      if (c.running() && !c.is_message()) by_call[describe(r, c)].insert(r.rank);
  const std::set<int>* fewest = nullptr;
  bool alone = false;
  for (const auto& [call, ranks] : by_call) {
    if (fewest && ranks.size() >= fewest->size()) {
      alone = alone && ranks.size() > fewest->size();
      continue;
    }
    fewest = &ranks, alone = true;
  }
  return fewest && alone && by_call.size() > 1 ? *fewest : std::set<int>();
}

std::string stack_text(const Record::Thread& thread, size_t most) {
  std::vector<CodeAddress> frames = thread.frames;
  frames.resize(std::min(frames.size(), most));
  // All but the first are return addresses, after their call.
  for (size_t i = 1; i < frames.size(); ++i) --frames[i].offset, --frames[i].address;
  std::string text;
  for (const std::string& name : symbols_of(frames)) text += "    " + printable(name) + "\n";
  if (frames.empty()) text = "    no answer\n";
  return text;
}

std::string stacks_of(const Record& r, bool all) {
  std::string text;
  for (size_t t = 0; t < r.threads.size(); ++t) {
    const Record::Thread& thread = r.threads[t];
    const bool main = thread.tid == r.pid, caller = t == 0 && crashed(r);
    if (!all && !main && !caller) continue;
    text +=
        fmt::format("  rank {}, thread {} ({}{}):\n", r.rank, thread.tid, thread.name, main ? ", main" : "");
    text += stack_text(thread, all ? thread.frames.size() : kFrames);
  }
  if (r.python.empty()) return text;
  text += fmt::format("  rank {}, Python:\n", r.rank);
  std::istringstream lines(r.python);
  int count = 0;
  for (std::string line; std::getline(lines, line) && (all || count < kPythonLines); ++count)
    text += "    " + printable(line) + "\n";
  return text;
}

std::string reason_of(const std::vector<Record>& records) {
  for (const Record& r : records)
    if (crashed(r)) return fmt::format("rank {} ended with {}", r.rank, r.reason);
  for (const Record& r : records)
    if (!r.text.empty()) return r.text;
  return records.front().reason;
}

}  // namespace

FlightReport flight_report(const std::vector<FlightRecord>& records, const std::map<int, int>& exits,
                           bool all_stacks) {
  FlightReport report;
  const Found found = compare(records);
  const int ranks = records.front().ranks;
  std::set<int> suspects, silent;
  for (int r = 0; r < ranks; ++r) silent.insert(r);
  std::string text =
      fmt::format("flight records of {} of {} ranks: {}\n", records.size(), ranks, reason_of(records));
  for (const Record& r : records) {
    silent.erase(r.rank);
    text += fmt::format("rank {} on {}: {}\n", r.rank, r.host, line_of(r));
    if (crashed(r)) suspects.insert(r.rank);
  }
  for (const auto& [rank, exit] : exits) {
    if (silent.erase(rank) == 0) continue;
    text += fmt::format("{} and wrote no record\n", end_of_rank(rank, exit));
    if (suspects.empty()) suspects.insert(rank);
  }
  if (suspects.empty()) suspects = found.differ;
  const auto waits = [&](int rank) {
    const auto r =
        std::find_if(records.begin(), records.end(), [&](const Record& f) { return f.rank == rank; });
    return r != records.end() && std::any_of(r->calls.begin(), r->calls.end(),
                                             [](const Call& c) { return c.running() && c.op != "send"; });
  };
  // The cause is a rank that others wait for and that waits for none.
  if (suspects.empty())
    std::copy_if(found.missing.begin(), found.missing.end(), std::inserter(suspects, suspects.end()),
                 [&](int r) { return !waits(r); });
  if (suspects.empty() && silent.empty()) suspects = found.missing;
  const bool any_crashed = std::any_of(records.begin(), records.end(), crashed);
  if (const std::set<int> few = minority(records);
      suspects.size() > 1 && !any_crashed && silent.empty() && !few.empty())
    suspects = few;
  for (const std::string& line : found.lines) text += line + "\n";
  if (!silent.empty()) {
    const std::vector<int> those(silent.begin(), silent.end());
    text +=
        fmt::format("{} wrote no record: killed, on another host, or not reached yet\n", ranks_text(those));
  }
  report.suspects.assign(suspects.begin(), suspects.end());
  if (!report.suspects.empty()) text += fmt::format("look at {}\n", ranks_text(report.suspects));
  for (const Record& r : records)
    if (all_stacks || suspects.contains(r.rank)) text += stacks_of(r, all_stacks);
  report.text = text;
  return report;
}

}  // namespace cleave::launcher
