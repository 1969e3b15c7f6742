#include "app/run/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json.h"

namespace cleave::app {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr const char* kFacts = "run.json";

std::string file_of(RunRecord::Kind kind, int64_t step) {
  return fmt::format("{}-{}", kind == RunRecord::Kind::weights ? "weights" : "gradients", step);
}

}  // namespace

double l2_norm(std::span<const float> values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum);
}

double l2_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::isfinite(a[i]) || std::isfinite(b[i])) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::isfinite(sum) ? std::sqrt(sum) : std::numeric_limits<double>::infinity();
}

RunRecord::RunRecord(fs::path folder) : folder_(std::move(folder)) {
  const std::string file = (folder_ / kFacts).string();
  const json facts = parse_json(InputFile(file, Exit::usage).text(), file, Exit::usage);
  arithmetic_ = {facts.at("rounding"), facts.at("signs")};
  int64_t at[2] = {0, 0};
  for (const json& p : facts.at("parameters")) {
    RecordedParameter parameter{p.at("name"), p.at("numel"), p.at("trained"), p.at("rounding")};
    index_[parameter.name] = parameters_.size();
    for (const Kind kind : {Kind::weights, Kind::gradients}) {
      if (kind == Kind::gradients && !parameter.trained) continue;
      offset_[int(kind)][parameter.name] = at[int(kind)];
      at[int(kind)] += parameter.numel;
    }
    parameters_.push_back(std::move(parameter));
  }
  for (const json& s : facts.at("steps"))
    steps_.push_back({s.at("loss"), s.at("lr"), s.at("loss_scale"), s.at("skipped")});
}

const RecordedParameter& RunRecord::parameter(const std::string& name) const {
  const auto at = index_.find(name);
  require(at != index_.end(), Exit::usage, "{}: has no parameter {}", folder_.string(), name);
  return parameters_[at->second];
}

std::vector<float> RunRecord::read(Kind kind, int64_t step, const std::string& name) const {
  std::vector<float> values(size_t(parameter(name).numel));
  const InputFile file((folder_ / file_of(kind, step)).string(), Exit::usage);
  file.read(offset_[int(kind)].at(name) * int64_t(sizeof(float)), std::as_writable_bytes(std::span(values)));
  return values;
}

RunRecordWriter::RunRecordWriter(fs::path folder, std::vector<RecordedParameter> parameters,
                                 const RunArithmetic& arithmetic)
    : folder_(std::move(folder)), parameters_(std::move(parameters)), arithmetic_(arithmetic) {}

void RunRecordWriter::begin(RunRecord::Kind kind, int64_t step) {
  file_ = folder_ / file_of(kind, step);
  out_ = std::ofstream(file_, std::ios::binary);
  require_written();
}

void RunRecordWriter::append(std::span<const float> values) {
  out_.write(reinterpret_cast<const char*>(values.data()), std::streamsize(values.size_bytes()));
  require_written();
}

void RunRecordWriter::note_rounding(size_t parameter, double relative) {
  parameters_[parameter].rounding = std::max(parameters_[parameter].rounding, relative);
}

void RunRecordWriter::finish() {
  json facts{{"rounding", arithmetic_.rounding},
             {"signs", arithmetic_.signs},
             {"parameters", json::array()},
             {"steps", json::array()}};
  for (const RecordedParameter& p : parameters_)
    facts["parameters"].push_back(
        {{"name", p.name}, {"numel", p.numel}, {"trained", p.trained}, {"rounding", p.rounding}});
  for (const RecordedStep& s : steps_)
    facts["steps"].push_back(
        {{"loss", s.loss}, {"lr", s.lr}, {"loss_scale", s.loss_scale}, {"skipped", s.skipped}});
  out_.close();
  require_written();
  file_ = folder_ / kFacts;
  out_ = std::ofstream(file_);
  out_ << facts.dump(2) << "\n";
  out_.close();
  require_written();
}

void RunRecordWriter::require_written() {
  require(out_.good(), Exit::checkpoint, "{}: cannot be written; check the free space", file_.string());
}

}  // namespace cleave::app
