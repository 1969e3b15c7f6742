#include "runtime/replay/step_record.h"

#include "checkpoint/checksum.h"
#include "checkpoint/output_file.h"
#include "core/input_file.h"
#include "core/json.h"

namespace cleave::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kVersion = 1;

std::string hex(uint64_t sum) { return fmt::format("{:016x}", sum); }
uint64_t sum_in(const json& text) { return std::stoull(text.get<std::string>(), nullptr, 16); }

json json_of(const RecordedCall& c) {
  json j{{"group", c.group},    {"op", int(c.post.op)},  {"type", int(c.post.dtype)},
         {"peer", c.post.peer}, {"numel", c.post.numel}, {"by", int(c.post.by)},
         {"what", c.what},      {"phase", c.phase}};
  if (c.sent_bytes > 0) j["sent"] = {c.sent_bytes, hex(c.sent)};
  if (c.received.bytes > 0) j["received"] = {c.received.at, c.received.bytes, hex(c.received.sum)};
  return j;
}

RecordedCall call_of(const json& j) {
  const int64_t op = counted(j.at("op")), by = counted(j.at("by")), type = counted(j.at("type"));
  require(op < comm::kCollectives && type <= int64_t(DType::fp8_e5m2) && by <= int64_t(Reduction::max),
          Exit::checkpoint, "operation {} with type {} and reduction {}", op, type, by);
  RecordedCall c{.group = j.at("group"),
                 .post = {.op = comm::Collective(op),
                          .dtype = DType(type),
                          .peer = j.at("peer"),
                          .numel = counted(j.at("numel")),
                          .by = Reduction(by)},
                 .what = j.at("what"),
                 .phase = j.at("phase"),
                 .received = {}};
  if (j.contains("sent")) c.sent_bytes = counted(j["sent"].at(0)), c.sent = sum_in(j["sent"].at(1));
  if (j.contains("received")) {
    const json& r = j["received"];
    c.received = {counted(r.at(0)), counted(r.at(1)), sum_in(r.at(2))};
  }
  return c;
}

json json_of(const std::vector<RecordedCall>& calls) {
  json list = json::array();
  for (const RecordedCall& c : calls) list.push_back(json_of(c));
  return list;
}

std::vector<RecordedCall> calls_of(const json& list) {
  std::vector<RecordedCall> calls;
  for (const json& c : list) calls.push_back(call_of(c));
  return calls;
}

}  // namespace

std::string RecordedCall::describe(size_t number) const {
  const std::string name = group.substr(group.rfind('/') + 1);
  return fmt::format("call {}, {}{} in group '{}'{}", number + 1, comm::describe(post),
                     what.empty() ? "" : fmt::format(" ({})", what), name.substr(0, name.find(':')),
                     phase.empty() ? "" : ", " + phase);
}

void write_record(const fs::path& folder, const StepRecord& record) {
  json after = json::array();
  for (const StateSum& s : record.after) after.push_back({s.kind, s.tensor, hex(s.sum)});
  const std::string body = json{
      {"version", kVersion},
      {"facts", record.facts},
      {"setup", json_of(record.setup)},
      {"step", json_of(record.step)},
      {"after",
       std::move(after)}}.dump();
  // The first line is the checksum of the second.
  const std::string text = hex(checkpoint::checksum_of(body)) + "\n" + body + "\n";
  checkpoint::OutputFile file(folder / StepRecord::kRecord, int64_t(text.size()));
  file.write(text.data(), int64_t(text.size()));
  file.close();
}

StepRecord read_record(const fs::path& folder) {
  const fs::path path = folder / StepRecord::kRecord;
  const std::string text = InputFile(path.string(), Exit::checkpoint).text();
  const size_t line = text.find('\n');
  const std::string body = line == std::string::npos ? "" : text.substr(line + 1, text.size() - line - 2);
  require(line == 16 && text.ends_with('\n') && text.substr(0, line) == hex(checkpoint::checksum_of(body)),
          Exit::checkpoint, "{}: damaged (its checksum differs); record the step again", path.string());
  try {
    const json j = parse_json(body, path.string(), Exit::checkpoint);
    require(j.at("version") == kVersion, Exit::checkpoint,
            "{}: written by another version (got format {}, expected {}); replay it with that version",
            path.string(), j.at("version").dump(), kVersion);
    StepRecord record{.setup = calls_of(j.at("setup")),
                      .step = calls_of(j.at("step")),
                      .after = {},
                      .facts = j.at("facts")};
    for (const json& s : j.at("after")) record.after.push_back({s.at(0), s.at(1), sum_in(s.at(2))});
    return record;
  } catch (const std::exception& e) {
    if (dynamic_cast<const Error*>(&e)) throw;
    fail(Exit::checkpoint, "{}: malformed ({}); record the step again", path.string(), e.what());
  }
}

}  // namespace cleave::runtime
