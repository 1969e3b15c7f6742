#include "launcher/flight_record.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/input_file.h"
#include "core/json.h"
#include "core/printable.h"

namespace cleave::launcher {
namespace {

using Json = nlohmann::json;

std::string text_in(const Json& j, const char* key) { return printable(j.at(key).get<std::string>()); }
int64_t time_in(const Json& j, const char* key) { return j.at(key).is_null() ? 0 : j.at(key).get<int64_t>(); }

FlightRecord record_of(const Json& j) {
  FlightRecord r;
  r.rank = j.at("rank"), r.ranks = j.at("ranks"), r.attempt = j.at("attempt"), r.pid = j.at("pid");
  r.job = text_in(j, "job"), r.host = text_in(j, "host"), r.reason = text_in(j, "reason");
  r.text = text_in(j, "text"), r.time_us = j.at("time_us"), r.python = j.at("python");
  for (const Json& g : j.at("groups"))
    r.groups.push_back({text_in(g, "name"), g.at("ranks"), g.at("entered"), g.at("finished")});
  for (const Json& c : j.at("calls")) {
    FlightRecord::Call call{
        c.at("group"),    c.at("number"),           text_in(c, "op"),         text_in(c, "type"),
        text_in(c, "by"), text_in(c, "what"),       text_in(c, "phase"),      c.at("count"),
        c.at("peer"),     time_in(c, "entered_us"), time_in(c, "finished_us")};
    if (call.group >= int(r.groups.size())) call.group = -1;
    r.calls.push_back(std::move(call));
  }
  for (const Json& t : j.at("threads")) {
    FlightRecord::Thread thread{t.at("tid"), text_in(t, "name"), {}};
    for (const Json& f : t.at("frames")) thread.frames.push_back({f.at(0), f.at(1), f.at(2)});
    r.threads.push_back(std::move(thread));
  }
  return r;
}

FlightRecord read_record(const std::string& path) {
  const Json j = parse_json(InputFile(path, Exit::usage).text(int64_t{64} << 20), path, Exit::usage);
  try {
    return record_of(j);
  } catch (const Json::exception& e) {
    fail(Exit::usage, "{}: malformed flight record: {}; write it again, or remove the file", path,
         without_number(e.what()));
  }
}

}  // namespace

std::vector<FlightRecord> read_flight_records(const std::string& folder) {
  std::vector<FlightRecord> records;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".json"))
      records.push_back(read_record(entry.path().string()));
  }
  require(!records.empty(), Exit::usage,
          "{}: contains no flight records (expected files rank-N.json); name the folder that a rank printed",
          folder);
  const FlightRecord newest = *std::max_element(
      records.begin(), records.end(), [](const auto& a, const auto& b) { return a.time_us < b.time_us; });
  std::erase_if(records, [&](const FlightRecord& r) {
    return r.job != newest.job || r.attempt != newest.attempt || r.ranks != newest.ranks;
  });
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return records;
}

}  // namespace cleave::launcher
